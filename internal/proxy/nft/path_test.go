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

package nft_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/tailnet-egress/egress-operator/internal/proxy/conntrack"
	"github.com/tailnet-egress/egress-operator/internal/proxy/forwarding"
	"github.com/tailnet-egress/egress-operator/internal/proxy/nft"
	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/test/netlab"
)

const (
	clientIP = "10.77.0.2"
	podIP    = "10.77.0.5"
	pod6     = "fd77::5"
	tunnel   = 1280
	// atOnce is how long a refusal may take.
	atOnce = 100 * time.Millisecond
)

// path is a client, a proxy Pod and a target behind its tunnel, for which a pair
// of interfaces stands. Routing in the Pod is as tailscaled sets it up.
type path struct {
	lab                   *netlab.Lab
	client, proxy, target *netlab.Host
	rules                 *nft.Programmer
	flows                 *conntrack.Table
}

func newPath(t testing.TB) *path {
	t.Helper()
	netlab.Require(t)
	lab, err := netlab.New("egrpath")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lab.Close() })
	p := &path{lab: lab}
	prefix := netip.MustParsePrefix
	p.client = must(lab.Host("client", prefix(clientIP+"/24"), prefix("fd77::2/64")))(t)
	p.proxy = must(lab.Host("proxy", prefix(podIP+"/24"), prefix(pod6+"/64")))(t)
	p.target = must(netlab.NewHost("egrpath-target"))(t)
	// A strict check of sources is what some distributions set for every namespace.
	check(t, p.proxy.Sysctl("net/ipv4/conf/all/rp_filter", "1"))
	p.plugTunnel(t)
	ip(t, p.proxy, "rule add pref 5210 fwmark 0x80000/0xff0000 lookup main")
	ip(t, p.proxy, "rule add pref 5270 lookup 52")
	ip(t, p.proxy, "-6 rule add pref 5210 fwmark 0x80000/0xff0000 lookup main")
	ip(t, p.proxy, "-6 rule add pref 5270 lookup 52")
	check(t, p.proxy.Do(func() error {
		_, err := forwarding.EnableIPv4()
		return err
	}))
	check(t, p.proxy.Sysctl("net/ipv6/conf/all/forwarding", "1"))
	p.rules = programmer(t, p.proxy)
	ns := must(os.Open("/run/netns/" + p.proxy.Namespace))(t)
	t.Cleanup(func() { _ = ns.Close() })
	p.flows = must(conntrack.Open(conntrack.InNetNS(int(ns.Fd()))))(t)
	t.Cleanup(func() { _ = p.flows.Close() })
	return p
}

// plugTunnel joins proxy and target. The target's own interface takes 1500 bytes,
// so that only the proxy keeps segments small enough.
func (p *path) plugTunnel(t testing.TB) {
	t.Helper()
	ns := must(netns.GetFromName(p.target.Namespace))(t)
	defer ns.Close() //nolint:errcheck // A leaked descriptor ends with the test.
	check(t, p.proxy.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: rules.Tunnel, MTU: tunnel},
			PeerName:  "eth0", PeerMTU: 1500, PeerNamespace: netlink.NsFd(ns),
		})
	}))
	for _, host := range []struct {
		*netlab.Host
		link  string
		addrs []netip.Addr
	}{
		{p.proxy, rules.Tunnel, []netip.Addr{own4, own6}},
		{p.target, "eth0", []netip.Addr{target4, other4, target6}},
	} {
		for _, addr := range host.addrs {
			ip(t, host.Host, fmt.Sprintf("addr add %s/%d dev %s nodad", addr, addr.BitLen(), host.link))
		}
		ip(t, host.Host, "link set "+host.link+" up")
	}
	ip(t, p.proxy, "route add 100.64.0.0/10 dev tailscale0 table 52")
	ip(t, p.proxy, "-6 route add fd7a:115c:a1e0::/48 dev tailscale0 table 52")
	// A real tunnel has no neighbours to discover.
	ip(t, p.proxy, fmt.Sprintf("neigh add %s lladdr %s dev tailscale0 nud permanent", target6, hardware(t, p.target, "eth0")))
	ip(t, p.target, fmt.Sprintf("neigh add %s lladdr %s dev eth0 nud permanent", own6, hardware(t, p.proxy, rules.Tunnel)))
	// The target knows the way to the proxy alone.
	ip(t, p.target, "route add 100.64.0.1/32 dev eth0")
	ip(t, p.target, "-6 route add fd7a:115c:a1e0::1/128 dev eth0")
}

func hardware(t testing.TB, host *netlab.Host, name string) (address string) {
	t.Helper()
	check(t, host.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			address = link.Attrs().HardwareAddr.String()
		}
		return err
	}))
	return address
}

func ip(t testing.TB, host *netlab.Host, args string) {
	t.Helper()
	if strings.HasSuffix(args, " nodad") && !strings.Contains(args, ":") {
		args = strings.TrimSuffix(args, " nodad")
	}
	if out, err := host.Command(t.Context(), "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v %s", args, err, out)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// echo answers TCP and UDP at host with name, a space, and what it was sent, and
// reports who asked.
func echo(t testing.TB, host *netlab.Host, address, name string) (peers <-chan netip.Addr) {
	t.Helper()
	seen := make(chan netip.Addr, 100)
	listener := must(host.Listen("tcp", address))(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			note(seen, conn.RemoteAddr())
			go func() {
				defer func() { _ = conn.Close() }()
				buffer := make([]byte, 4096)
				for {
					n, err := conn.Read(buffer)
					if err != nil {
						return
					}
					if _, err := conn.Write([]byte(name + " " + string(buffer[:n]))); err != nil {
						return
					}
				}
			}()
		}
	}()
	packets := must(host.ListenPacket("udp", address))(t)
	t.Cleanup(func() { _ = packets.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			note(seen, from)
			_, _ = packets.WriteTo([]byte(name+" "+string(buffer[:n])), from)
		}
	}()
	return seen
}

func note(seen chan netip.Addr, from net.Addr) {
	select {
	case seen <- netip.MustParseAddrPort(from.String()).Addr().Unmap():
	default:
	}
}

func next(t testing.TB, peers <-chan netip.Addr) netip.Addr {
	t.Helper()
	select {
	case peer := <-peers:
		return peer
	case <-time.After(time.Second):
		t.Error("nobody asked")
		return netip.Addr{}
	}
}

func dial(t testing.TB, host *netlab.Host, network, address string, patience time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return host.Dial(ctx, network, address)
}

func say(conn net.Conn, what string, patience time.Duration) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(what)); err != nil {
		return "", err
	}
	buffer := make([]byte, 4096)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

// answers is whether a new connection of host to address is answered by name.
func answers(t testing.TB, host *netlab.Host, network, address, name string) {
	t.Helper()
	conn, err := dial(t, host, network, address, 3*time.Second)
	if err != nil {
		t.Errorf("%s %s: %v", network, address, err)
		return
	}
	defer func() { _ = conn.Close() }()
	if got, err := say(conn, "hello", 3*time.Second); err != nil || got != name+" hello" {
		t.Errorf("%s %s answered %q, %v, want %q", network, address, got, err, name+" hello")
	}
}

// refuses is whether a new connection is refused at once. A busy machine gets two
// more tries to be quick, but not to refuse.
func refuses(t testing.TB, host *netlab.Host, network, address string) {
	t.Helper()
	var took time.Duration
	for range 3 {
		start := time.Now()
		conn, err := dial(t, host, network, address, 3*time.Second)
		if err == nil {
			// UDP learns of the refusal from its first packet.
			_, err = say(conn, "hello", 3*time.Second)
			_ = conn.Close()
		}
		took = time.Since(start)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s %s: %v after %v, want a refusal", network, address, err, took)
			return
		}
		if took <= atOnce {
			return
		}
	}
	t.Errorf("%s %s: refused after %v, want at most %v", network, address, took, atOnce)
}

// silent is whether a new connection gets no answer at all.
func silent(t testing.TB, host *netlab.Host, network, address string) {
	t.Helper()
	conn, err := dial(t, host, network, address, 500*time.Millisecond)
	if err == nil {
		_, err = say(conn, "hello", 500*time.Millisecond)
		_ = conn.Close()
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s %s: %v, want silence", network, address, err)
	}
}

// isReset is whether the next packet on conn is answered by a reset.
func isReset(t testing.TB, conn net.Conn) {
	t.Helper()
	_, err := say(conn, "still there?", time.Second)
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the old connection got %v, want a reset", err)
	}
}

func drainTo(conn net.Conn, n int64) error {
	_, err := io.CopyN(io.Discard, conn, n)
	return err
}
