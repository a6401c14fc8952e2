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

package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

func (p *pod) get(path string) (int, string) {
	p.t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: p.client.Dial}, Timeout: 2 * time.Second}
	response, err := client.Get(fmt.Sprintf("http://%s:9002%s", p.ip, path))
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close() //nolint:errcheck // It was read to the end.
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, strings.TrimSpace(string(body))
}

// TestTargetsMoveAndComeLate is case C01, and C02 for one target.
func TestTargetsMoveAndComeLate(t *testing.T) {
	p := newPod(t, "pxmove")
	domain := p.tn.Domain()
	p.start()
	p.target(toName("later." + domain))
	p.acked("g1 connected app/db=TargetNotFound", 10*time.Second)
	if code, body := p.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
	p.refused()
	flow := p.datagrams()
	time.Sleep(300 * time.Millisecond)
	later := p.add("later")
	p.works("later", 15*time.Second)
	if gap := flow.gap(time.Now().Add(-500 * time.Millisecond)); gap > time.Second {
		t.Errorf("a flow that was refused before has had no answer for %s", gap)
	}
	p.acked("g1 connected app/db="+later.IPs()[0].String(), time.Second)

	for i := range 3 {
		if i == 1 {
			must(t, p.device.Reconnect(p.ctx))
		}
		connections, flow := p.connections(), p.datagrams()
		time.Sleep(500 * time.Millisecond)
		old := later.IPs()[0]
		changed, err := later.Recreate(p.ctx)
		must(t, err)
		time.Sleep(1500 * time.Millisecond)
		tcp, udp := connections.gap(changed), flow.gap(changed)
		t.Logf("re-created, %s became %s: new connections waited %s, an existing UDP flow %s", old, later.IPs()[0], tcp.Round(time.Millisecond), udp.Round(time.Millisecond))
		if tcp > time.Second || udp > time.Second {
			t.Errorf("round %d: no answer for %s by TCP, %s by UDP", i, tcp, udp)
		}
		p.acked("g1 connected app/db="+later.IPs()[0].String(), time.Second)
		out, err := p.device.Host().Command(p.ctx, "nft", "list", "ruleset").CombinedOutput()
		if err != nil || strings.Contains(string(out), old.String()) || !strings.Contains(string(out), later.IPs()[0].String()) {
			t.Errorf("the rules after round %d, %v:\n%s", i, err, out)
		}
	}
	must(t, later.Remove(p.ctx))
	p.acked("g1 connected app/db=TargetNotFound", time.Second)
	p.refused()
	value, err := p.device.Host().Command(p.ctx, "cat", "/proc/sys/net/ipv4/ip_forward").Output()
	if err != nil || strings.TrimSpace(string(value)) != "0" {
		t.Errorf("ip_forward is %s, %v", value, err)
	}
}

func TestRoutes(t *testing.T) {
	p := newPod(t, "pxroute")
	p.start()
	router := p.add("router")
	_, err := router.AddSubnetHost("behind", netip.MustParsePrefix("192.168.7.10/24"))
	must(t, err)
	p.target(proxyconfig.Target{Destination: proxyconfig.Destination{IP: netip.MustParseAddr("192.168.7.10")},
		Listeners: []proxyconfig.Listener{{Protocol: proxyconfig.TCP, Port: 5432, TargetPort: 7}, {Protocol: proxyconfig.UDP, Port: 5432, TargetPort: 7}}})
	p.acked("g1 connected app/db=NoRouteToTarget", 10*time.Second)
	p.refused()
	must(t, router.AdvertiseRoutes(p.ctx, netip.MustParsePrefix("192.168.7.0/24")))
	p.works("behind", 3*time.Second)
	p.acked("g1 connected app/db=192.168.7.10", time.Second)

	// A device that serves the Pod's own network: neither replies nor what the Pod
	// asks of the cluster must go there.
	cluster, err := p.client.Listen("tcp", netip.MustParsePrefix(clientAddr).Addr().String()+":6443")
	must(t, err)
	t.Cleanup(func() { _ = cluster.Close() })
	other := p.add("other")
	must(t, other.AdvertiseRoutes(p.ctx, netip.MustParsePrefix(podNetwork)))
	time.Sleep(time.Second)
	out, err := p.device.Host().Command(p.ctx, "ip", "route", "show", "table", "52").CombinedOutput()
	if err != nil || !strings.Contains(string(out), podNetwork) {
		t.Errorf("the Pod does not use the route: %v\n%s", err, out)
	}
	p.works("behind", time.Second)
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
	defer cancel()
	if conn, err := p.device.Host().Dial(ctx, "tcp", cluster.Addr().String()); err != nil {
		t.Errorf("the Pod cannot reach the cluster: %v", err)
	} else {
		_ = conn.Close()
	}
	if code, body := p.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	must(t, router.ApproveRoutes())
	p.acked("g1 connected app/db=NoRouteToTarget", 2*time.Second)
	p.refused()

	// The tailnet's DNS records are not in the differences that tailscaled tells.
	p.target(toName("alias.example.com"))
	p.acked("g2 connected app/db=TargetNotFound", 2*time.Second)
	p.tn.SetRecords(map[string][]netip.Addr{"alias.example.com": other.IPs()[:1]})
	p.works("other", 2*time.Second)
	p.tn.SetRecords(map[string][]netip.Addr{"alias.example.com": router.IPs()[:1]})
	p.works("router", time.Second)
}

func TestTailscaledDiesAndRulesAreDeleted(t *testing.T) {
	p := newPod(t, "pxkill")
	p.start()
	db := p.add("db")
	p.target(toName(db.FQDN()))
	p.acked("g1 connected", 10*time.Second)
	p.works("db", time.Second)

	begun := time.Now()
	p.device.StopTailscaled(true)
	p.acked("g1 app/db="+db.IPs()[0].String(), time.Second)
	t.Logf("Connected was false %s after tailscaled was killed", time.Since(begun).Round(time.Millisecond))
	if code, _ := p.get("/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz without tailscaled: %d", code)
	}
	flow := p.datagrams()
	must(t, p.device.StartTailscaled(p.ctx))
	p.works("db", 5*time.Second)
	p.acked("g1 connected app/db="+db.IPs()[0].String(), time.Second)
	time.Sleep(time.Second)
	if gap := flow.gap(time.Now().Add(-500 * time.Millisecond)); gap > 500*time.Millisecond {
		t.Errorf("a UDP flow from while tailscaled was away has had no answer for %s", gap)
	}

	connections, flow := p.connections(), p.datagrams()
	time.Sleep(300 * time.Millisecond)
	begun = time.Now()
	must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	out, err := p.device.Host().Command(p.ctx, "nft", "delete", "table", "ip", "egress").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// A flow that begins while there are no rules is one to the Pod itself.
	inBetween := p.datagrams()
	time.Sleep(time.Second)
	must(t, p.cmd.Process.Signal(syscall.SIGCONT))
	time.Sleep(11 * time.Second)
	p.works("db", time.Second)
	tcp, udp, new := connections.gap(begun), flow.gap(begun), inBetween.gap(begun)
	t.Logf("after the table was deleted: new connections waited %s, an existing UDP flow %s, a new one %s",
		tcp.Round(time.Millisecond), udp.Round(time.Millisecond), new.Round(time.Millisecond))
	if max(tcp, udp, new) > 10*time.Second {
		t.Errorf("no answer for %s by TCP, %s by an existing UDP flow, %s by a new one", tcp, udp, new)
	}
}

func TestObjectsHealAndTheAPIServerIsAway(t *testing.T) {
	p := newPod(t, "pxapi")
	db, other := p.add("db"), p.add("other")
	// With the API server away the proxy starts from its file.
	p.api.SetAway(true)
	p.config.Generation = 1
	file := p.config
	first := toName(db.FQDN())
	first.ID = "app/db"
	file.Targets = []proxyconfig.Target{first}
	data, err := file.Encode()
	must(t, err)
	must(t, os.WriteFile(filepath.Join(p.dir, proxyconfig.ConfigKey), data, 0o644))
	p.start()
	p.works("db", 10*time.Second)
	time.Sleep(2 * time.Second)
	p.api.SetAway(false)
	p.acked("g1 connected app/db="+db.IPs()[0].String(), 6*time.Second)
	for deadline := time.Now().Add(6 * time.Second); p.api.Get(secretKey)["device_id"] == "" && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	secret := p.api.Get(secretKey)
	node, err := p.device.Node()
	must(t, err)
	if secret["device_id"] != string(node.StableID) || secret["device_fqdn"] != p.device.FQDN() ||
		secret["device_ips"] != fmt.Sprintf(`["%s","%s"]`, node.Addresses[0], node.Addresses[1]) {
		t.Errorf("published %q, the device is %+v", secret, node)
	}

	p.target(toName(other.FQDN()))
	begun := time.Now()
	p.works("other", 2*time.Second)
	t.Logf("an edit took effect within %s", time.Since(begun).Round(time.Millisecond))

	p.api.Delete(ackKey)
	time.Sleep(300 * time.Millisecond)
	p.api.Put(ackKey, nil)
	t.Logf("the deleted Ack was back %s after its object", p.acked("g2 connected", 2*time.Second).Round(time.Millisecond))

	config := p.api.Get(secretKey)[proxyconfig.ConfigKey]
	p.api.Delete(secretKey)
	time.Sleep(300 * time.Millisecond)
	p.works("other", time.Second)
	p.api.Put(secretKey, map[string]string{proxyconfig.ConfigKey: config})
	for deadline := time.Now().Add(3 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		again := p.api.Get(secretKey)
		if again["device_id"] == secret["device_id"] && again["device_ips"] == secret["device_ips"] && again["_machinekey"] == "m" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the Secret was not filled again: %q", again)
		}
	}
	patches := p.api.Patches()
	time.Sleep(12 * time.Second)
	if n := p.api.Patches() - patches; n > 0 {
		t.Errorf("%d writes while nothing changed", n)
	}
}

func TestLoginAgain(t *testing.T) {
	p := newPod(t, "pxlogin")
	p.start()
	db := p.add("db")
	p.target(toName(db.FQDN()))
	p.acked("g1 connected", 10*time.Second)
	write := func(key string) {
		path := filepath.Join(strings.TrimSuffix(p.device.Socket(), ".sock"), "config.json")
		raw := fmt.Sprintf(`{"Version":"alpha0","Locked":false,"ServerURL":%q,"AuthKey":%q,"Hostname":"pod","acceptDNS":false,"NetfilterMode":"off"}`, p.tn.ControlURL(), key)
		must(t, os.WriteFile(path, []byte(raw), 0o600))
		must(t, os.WriteFile(filepath.Join(p.dir, proxyconfig.TailscaledKey), []byte(raw), 0o600))
	}
	write("")
	time.Sleep(500 * time.Millisecond)
	node, err := p.device.Node()
	must(t, err)
	must(t, p.tn.Control().Delete(node.ID))
	p.acked("g1 app/db=", 10*time.Second)
	t.Logf("logged out: %s", p.ack().Message)
	time.Sleep(5 * time.Second)
	write(p.tn.AuthKey())
	p.acked("g1 connected app/db="+db.IPs()[0].String(), 20*time.Second)
	p.works("db", 3*time.Second)
}

// TestDrain is case C12.
func TestDrain(t *testing.T) {
	p := newPod(t, "pxdrain")
	p.start()
	db := p.add("db")
	p.target(toName(db.FQDN()))
	p.acked("g1 connected", 10*time.Second)
	p.works("db", time.Second)
	long, err := p.client.Dial(p.ctx, "tcp", fmt.Sprintf("%s:5432", p.ip))
	must(t, err)
	_ = long.SetDeadline(time.Now().Add(20 * time.Second))
	if answer, err := exchange(long, "before"); err != nil || answer != "db before" {
		t.Fatalf("%q, %v", answer, err)
	}
	begun := time.Now()
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.acked("g1 connected draining", time.Second)
	if code, body := p.get("/readyz"); code != http.StatusServiceUnavailable || body != "The proxy is draining" {
		t.Errorf("/readyz: %d %s", code, body)
	}
	p.works("db", time.Second)
	time.Sleep(time.Until(begun.Add(3500 * time.Millisecond)))
	if answer, err := exchange(long, "within the cap"); err != nil || answer != "db within the cap" {
		t.Errorf("a session was disturbed before the cap: %q, %v", answer, err)
	}
	time.Sleep(time.Until(begun.Add(4500 * time.Millisecond)))
	sent := time.Now()
	answer, err := exchange(long, "after the cap")
	if err == nil || time.Since(sent) > time.Second || !strings.Contains(err.Error(), "reset") {
		t.Errorf("after the cap: %q, %v after %s, want a reset", answer, err, time.Since(sent))
	}
	select {
	case err := <-p.ended:
		if took := time.Since(begun); err != nil || took < 5*time.Second || took > 8*time.Second {
			t.Errorf("ended with %v after %s", err, took)
		}
	case <-time.After(10 * time.Second):
		t.Error("never ended")
	}
}

func TestStopsAtOnceWithoutFlows(t *testing.T) {
	p := newPod(t, "pxstop")
	p.start()
	p.target(toName("later." + p.tn.Domain()))
	p.acked("g1 connected", 10*time.Second)
	begun := time.Now()
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-p.ended:
		if took := time.Since(begun); err != nil || took > 2*time.Second {
			t.Errorf("ended with %v after %s", err, took)
		}
	case <-time.After(10 * time.Second):
		t.Error("never ended")
	}
}
