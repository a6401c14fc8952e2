/*
Copyright 2026 The egress-operator Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package tailnet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"tailscale.com/ipn/ipnstate"

	"github.com/tailnet-egress/egress-operator/test/netlab"
	"github.com/tailnet-egress/egress-operator/test/tailnet/control"
)

func TestDevicesReachEachOther(t *testing.T) {
	ctx, tn := start(t, "tnreach")
	a := add(t, ctx, tn, "a", DeviceOptions{})
	b := add(t, ctx, tn, "b", DeviceOptions{TCPPorts: []uint16{9999}})
	for _, ip := range b.IPs() {
		for _, network := range []string{tcp, udp} {
			reach(t, ctx, a, network, ip, "b")
		}
	}
	if got := httpGet(t, ctx, a, fmt.Sprintf("http://%s/bytes/100000", b.IPs()[0])); len(got) != 100000 {
		t.Errorf("/bytes/100000 gave %d bytes", len(got))
	}
	late := time.Now()
	c := add(t, ctx, tn, "c", DeviceOptions{RelayOnly: true})
	sees(t, ctx, a, late, 10*time.Second, "a late device", func(s *ipnstate.Status) bool {
		return peer(s, "c."+DefaultDomain) != nil
	})
	reach(t, ctx, a, tcp, c.IPs()[0], "c")
	status, err := a.Local().Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if p := peer(status, c.FQDN()); p == nil || p.CurAddr != "" || p.Relay != "lab" {
		t.Errorf("c is reached by %+v, not by the relay", p)
	}
	if p := peer(status, b.FQDN()); p == nil || p.CurAddr == "" {
		t.Errorf("b is reached by %+v, not directly", p)
	}
}

// TestMemberBehindANode is a Pod's case: its packets leave with its node's
// address.
func TestMemberBehindANode(t *testing.T) {
	ctx, tn := start(t, "tnpod")
	b := add(t, ctx, tn, "b", DeviceOptions{})
	node, err := tn.opts.Lab.Host("node", netip.MustParsePrefix("172.29.0.11/24"))
	if err != nil {
		t.Fatal(err)
	}
	pod, err := netlab.NewHost(node.Namespace + "-pod")
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	nft := node.Command(ctx, "nft", "add table ip nat; "+
		"add chain ip nat post { type nat hook postrouting priority srcnat; }; "+
		"add rule ip nat post ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade")
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	i := &instance{t: tn, number: 0, host: node}
	gateway, err := i.join(pod, "pod0", netip.MustParsePrefix("10.244.1.5/24"))
	if err != nil {
		t.Fatal(err)
	}
	i.host, i.dir, i.socket = pod, filepath.Join(tn.opts.StateDir, "pod"), filepath.Join(tn.opts.StateDir, "pod.sock")
	if err := pod.Route(netip.PrefixFrom(netip.IPv4Unspecified(), 0), gateway); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(i.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := i.writeConfig("pod"); err != nil {
		t.Fatal(err)
	}
	defer i.stopTailscaled(syscall.SIGKILL)
	if err := i.startTailscaled(ctx); err != nil {
		t.Fatal(err)
	}
	member := &Device{t: tn, name: "pod", now: i}
	reach(t, ctx, member, tcp, b.IPs()[0], "b")
	reach(t, ctx, member, udp, b.IPs()[1], "b")
	status, err := member.Local().Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if p := peer(status, b.FQDN()); p == nil || p.CurAddr == "" {
		t.Errorf("b is reached by %+v, not directly", p)
	}
}

func TestPeersFollowADevice(t *testing.T) {
	ctx, tn := start(t, "tnmove")
	a := add(t, ctx, tn, "a", DeviceOptions{})
	b := add(t, ctx, tn, "b", DeviceOptions{})
	hasAddress := func(ip netip.Addr) func(*ipnstate.Status) bool {
		return func(s *ipnstate.Status) bool {
			p := peer(s, "b."+DefaultDomain)
			return p != nil && p.TailscaleIPs[0] == ip
		}
	}
	seen := map[netip.Addr]bool{b.IPs()[0]: true}
	for round := range 3 {
		if round == 1 {
			if err := a.Reconnect(ctx); err != nil {
				t.Fatal(err)
			}
		}
		begun, err := b.Recreate(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ip := b.IPs()[0]
		if seen[ip] {
			t.Errorf("the new address %s is an old one", ip)
		}
		seen[ip] = true
		sees(t, ctx, a, begun, time.Second, "the new address", hasAddress(ip))
		reach(t, ctx, a, tcp, ip, "b")
		reach(t, ctx, a, udp, ip, "b")
	}

	tn.SetRecords(map[string][]netip.Addr{"web." + DefaultDomain: {netip.MustParseAddr("100.100.1.1")}})
	begun := time.Now()
	for {
		// The bus carries no DNS records after its first message.
		dns, err := a.Local().DNSConfig(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(dns.ExtraRecords) == 1 || time.Since(begun) > 3*time.Second {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("a record took %s to be seen", took)
	}

	if err := b.Readdress(); err != nil {
		t.Fatal(err)
	}
	sees(t, ctx, a, time.Now(), time.Second, "another address of the same node", hasAddress(b.IPs()[0]))
	reach(t, ctx, a, tcp, b.IPs()[0], "b")

	if err := b.Rename("bb"); err != nil {
		t.Fatal(err)
	}
	sees(t, ctx, a, time.Now(), time.Second, "another name", func(s *ipnstate.Status) bool {
		return peer(s, "bb."+DefaultDomain) != nil && peer(s, "b."+DefaultDomain) == nil
	})

	// Removed and added, as people do, while the control server was away.
	tn.Control().SetAway(true)
	old := b.IPs()[0]
	if err := b.Remove(ctx); err != nil {
		t.Fatal(err)
	}
	tn.Control().SetAway(false)
	sees(t, ctx, a, time.Now(), 20*time.Second, "a removal during an outage", func(s *ipnstate.Status) bool {
		return len(s.Peer) == 0
	})
	if answer, err := ask(ctx, a, tcp, old, time.Second); err == nil {
		t.Errorf("a removed device answers %q", answer)
	}
	b = add(t, ctx, tn, "b", DeviceOptions{})
	sees(t, ctx, a, time.Now(), time.Second, "a device of the old name", hasAddress(b.IPs()[0]))
	reach(t, ctx, a, tcp, b.IPs()[0], "b")
}

func TestKeysAndLogins(t *testing.T) {
	ctx, tn := start(t, "tnkeys")
	a := add(t, ctx, tn, "a", DeviceOptions{})
	once := tn.Control().AddAuthKey(control.AuthKey{Tags: []string{"tag:k8s"}})
	b := add(t, ctx, tn, "b", DeviceOptions{AuthKey: once.Key})
	if n, err := b.Node(); err != nil || n.AuthKey != once.Key || !slices.Equal(n.Tags, []string{"tag:k8s"}) {
		t.Errorf("b registered as %+v, %v", n, err)
	}
	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if d, err := tn.AddDevice(short, "c", DeviceOptions{AuthKey: once.Key}); err == nil {
		t.Errorf("a single-use key registered a second device, %s", d)
	}

	if err := b.Expire(); err != nil {
		t.Fatal(err)
	}
	sees(t, ctx, a, time.Now(), time.Second, "an expired key", func(s *ipnstate.Status) bool {
		p := peer(s, b.FQDN())
		return p != nil && p.Expired
	})
	if answer, err := ask(ctx, a, tcp, b.IPs()[0], time.Second); err == nil {
		t.Errorf("an expired device answers %q", answer)
	}
	sees(t, ctx, b, time.Now(), time.Second, "the own expiry", func(s *ipnstate.Status) bool {
		return s.BackendState == "NeedsLogin"
	})
	if err := b.Renew(); err != nil {
		t.Fatal(err)
	}
	sees(t, ctx, b, time.Now(), 5*time.Second, "the own renewal", func(s *ipnstate.Status) bool {
		return s.BackendState == "Running"
	})
	reach(t, ctx, a, tcp, b.IPs()[0], "b")

	b.StopTailscaled(true)
	if answer, err := ask(ctx, a, tcp, b.IPs()[0], time.Second); err == nil {
		t.Errorf("a device without tailscaled answers %q", answer)
	}
	if err := b.StartTailscaled(ctx); err != nil {
		t.Fatal(err)
	}
	reach(t, ctx, a, tcp, b.IPs()[0], "b")
	if keys := tn.Control().AuthKeys(); !slices.ContainsFunc(keys, func(k control.AuthKey) bool {
		return k.Key == once.Key && k.Uses == 1
	}) {
		t.Errorf("after a restart the single-use key has other uses: %+v", keys)
	}

	// Deleted behind its back, the client learns that it has to log in.
	n, err := b.Node()
	if err != nil {
		t.Fatal(err)
	}
	if err := tn.Control().Delete(n.ID); err != nil {
		t.Fatal(err)
	}
	sees(t, ctx, b, time.Now(), time.Second, "the own deletion", func(s *ipnstate.Status) bool {
		return s.BackendState == "NeedsLogin"
	})
}

func TestSubnetRoutes(t *testing.T) {
	ctx, tn := start(t, "tnroute")
	a := add(t, ctx, tn, "a", DeviceOptions{AcceptRoutes: true})
	r := add(t, ctx, tn, "router", DeviceOptions{})
	// The second network is one that clusters use for their Pods.
	nets := []netip.Prefix{netip.MustParsePrefix("192.168.77.0/24"), netip.MustParsePrefix("10.244.0.0/16")}
	hosts := []netip.Prefix{netip.MustParsePrefix("192.168.77.10/24"), netip.MustParsePrefix("10.244.200.9/16")}
	for i, addr := range hosts {
		if _, err := r.AddSubnetHost(fmt.Sprintf("host%d", i), addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.AdvertiseRoutes(ctx, nets...); err != nil {
		t.Fatal(err)
	}
	reachable := func(n int) func(*ipnstate.Status) bool {
		return func(s *ipnstate.Status) bool {
			p := peer(s, r.FQDN())
			return p != nil && p.PrimaryRoutes != nil && p.PrimaryRoutes.Len() == n || n == 0 && p != nil && p.PrimaryRoutes == nil
		}
	}
	sees(t, ctx, a, time.Now(), time.Second, "two routes", reachable(2))
	for i, addr := range hosts {
		reach(t, ctx, a, tcp, addr.Addr(), fmt.Sprintf("host%d", i))
		reach(t, ctx, a, udp, addr.Addr(), fmt.Sprintf("host%d", i))
	}
	changed, err := r.Recreate(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sees(t, ctx, a, changed, time.Second, "the routes of the re-created router", reachable(2))
	reach(t, ctx, a, tcp, hosts[0].Addr(), "host0")

	if err := r.ApproveRoutes(nets[1]); err != nil {
		t.Fatal(err)
	}
	sees(t, ctx, a, time.Now(), time.Second, "one approval withdrawn", reachable(1))
	if answer, err := ask(ctx, a, tcp, hosts[0].Addr(), time.Second); err == nil {
		t.Errorf("a host without an approved route answers %q", answer)
	}
	if err := r.ApproveRoutes(); err != nil {
		t.Fatal(err)
	}
	sees(t, ctx, a, time.Now(), time.Second, "both approvals withdrawn", reachable(0))
}
