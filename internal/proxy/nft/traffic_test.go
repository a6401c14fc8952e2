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
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"

	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
	"github.com/tailnet-egress/egress-operator/test/netlab"
)

func database() rules.Target {
	return rules.Target{
		ID: "app/db", Addr4: target4, Addr6: target6,
		Listeners: []proxyconfig.Listener{listener(proxyconfig.TCP, 5432, 15432), listener(proxyconfig.UDP, 5432, 15432)},
	}
}

func TestListenersReachTheirTarget(t *testing.T) {
	p := newPath(t)
	apply(t, p.rules, input(database()), true)
	for _, to := range []struct{ target, pod, own netip.Addr }{
		{target4, netip.MustParseAddr(podIP), own4},
		{target6, netip.MustParseAddr(pod6), own6},
	} {
		peers := echo(t, p.target, netip.AddrPortFrom(to.target, 15432).String(), "db")
		address := netip.AddrPortFrom(to.pod, 5432).String()
		for _, network := range []string{"tcp", "udp"} {
			answers(t, p.client, network, address, "db")
			if peer := next(t, peers); peer != to.own {
				t.Errorf("the target saw %s over %s, want the proxy's address %s", peer, network, to.own)
			}
		}
		// No listener there, but the target has one.
		refuses(t, p.client, "tcp", netip.AddrPortFrom(to.pod, 15432).String())
	}
	if value := readSysctl(t, p.proxy, "net/ipv4/ip_forward"); value != "0" {
		t.Errorf("ip_forward is %s, want 0", value)
	}
	if value := readSysctl(t, p.proxy, "net/ipv4/conf/eth0/forwarding"); value != "1" {
		t.Errorf("forwarding of eth0 is %s, want 1", value)
	}
}

func readSysctl(t *testing.T, host *netlab.Host, key string) (value string) {
	t.Helper()
	check(t, host.Do(func() error {
		data, err := os.ReadFile("/proc/sys/" + key)
		value = strings.TrimSpace(string(data))
		return err
	}))
	return value
}

func TestAllPortsReachTheTarget(t *testing.T) {
	p := newPath(t)
	echo(t, p.target, "100.64.0.9:80", "web")
	health := echo(t, p.proxy, podIP+":9002", "health")
	apply(t, p.rules, input(rules.Target{ID: "app/host", AllPorts: true, Addr4: target4}), true)
	answers(t, p.client, "tcp", podIP+":80", "web")
	answers(t, p.client, "udp", podIP+":80", "web")
	answers(t, p.client, "tcp", podIP+":9002", "health")
	if peer := next(t, health); peer.String() != clientIP {
		t.Errorf("the health port saw %s", peer)
	}
	ping(t, p, true)
	// What the Pod itself does is its own affair.
	echo(t, p.client, clientIP+":7000", "client")
	answers(t, p.proxy, "tcp", clientIP+":7000", "client")
	answers(t, p.proxy, "udp", clientIP+":7000", "client")
	answers(t, p.proxy, "tcp", podIP+":9002", "health")
	answers(t, p.proxy, "tcp", "100.64.0.9:80", "web")
	refuses(t, p.proxy, "tcp", podIP+":80")

	apply(t, p.rules, input(rules.Target{ID: "app/host", AllPorts: true}), true)
	refuses(t, p.client, "tcp", podIP+":80")
	refuses(t, p.client, "udp", podIP+":80")
	refuses(t, p.client, "tcp", "["+pod6+"]:80")
	answers(t, p.client, "tcp", podIP+":9002", "health")
}

// ping sends an echo request to the Pod, and finds out who got it by the target's
// count of requests.
func ping(t *testing.T, p *path, wantTarget bool) {
	t.Helper()
	before := echoRequests(t, p.target)
	conn := must(p.client.ListenPacket("ip4:icmp", clientIP))(t)
	defer func() { _ = conn.Close() }()
	request := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 77, Seq: 1, Data: []byte("hello")}}
	data := must(request.Marshal(nil))(t)
	must(conn.WriteTo(data, &net.IPAddr{IP: net.ParseIP(podIP)}))(t)
	check(t, conn.SetDeadline(time.Now().Add(2*time.Second)))
	buffer := make([]byte, 1500)
	n, from, err := conn.ReadFrom(buffer)
	check(t, err)
	reply := must(icmp.ParseMessage(1, buffer[:n]))(t)
	if reply.Type != ipv4.ICMPTypeEchoReply || from.String() != podIP {
		t.Errorf("ping was answered with %v by %s", reply.Type, from)
	}
	if got := echoRequests(t, p.target) > before; got != wantTarget {
		t.Errorf("the ping reached the target: %t, want %t", got, wantTarget)
	}
}

func echoRequests(t *testing.T, host *netlab.Host) (count int) {
	t.Helper()
	out := must(host.Command(t.Context(), "cat", "/proc/net/snmp").Output())(t)
	var lines [][]string
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "Icmp:") {
			lines = append(lines, strings.Fields(line))
		}
	}
	for i, name := range lines[0] {
		if name == "InEchos" {
			_, err := fmt.Sscan(lines[1][i], &count)
			check(t, err)
		}
	}
	return count
}

func TestUnresolvedIsRefusedAtOnce(t *testing.T) {
	p := newPath(t)
	db := database()
	db.Addr4, db.Addr6 = netip.Addr{}, netip.Addr{}
	apply(t, p.rules, input(db), true)
	for _, address := range []string{podIP + ":5432", "[" + pod6 + "]:5432", podIP + ":1"} {
		refuses(t, p.client, "tcp", address)
		refuses(t, p.client, "udp", address)
	}
	ping(t, p, false)
}

// With the tunnel down, packets for the target would leave by the default route.
func TestNothingLeaksWithoutTheTunnel(t *testing.T) {
	p := newPath(t)
	outside := must(p.lab.Host("outside", netip.MustParsePrefix("10.77.0.1/24"), netip.MustParsePrefix("100.64.0.9/32")))(t)
	heard := capture(t, outside)
	echo(t, outside, "100.64.0.9:15432", "outside")
	echo(t, p.target, "100.64.0.9:15432", "db")
	ip(t, p.proxy, "route add default via 10.77.0.1")
	apply(t, p.rules, input(database()), true)
	session := must(dial(t, p.client, "tcp", podIP+":5432", time.Second))(t)
	defer func() { _ = session.Close() }()
	if got, err := say(session, "hello", time.Second); got != "db hello" {
		t.Fatal(got, err)
	}

	ip(t, p.proxy, "route del 100.64.0.0/10 dev tailscale0 table 52")
	refuses(t, p.client, "tcp", podIP+":5432")
	refuses(t, p.client, "udp", podIP+":5432")
	// A session is not told to end: tailscaled may only be restarting.
	if got, err := say(session, "away", 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the session got %q, %v while there was no tunnel", got, err)
	}
	for _, packet := range heard() {
		if packet.destination == target4 {
			t.Errorf("a packet left by eth0: %+v", packet)
		}
	}
	ip(t, p.proxy, "route add 100.64.0.0/10 dev tailscale0 table 52")
	check(t, session.SetDeadline(time.Now().Add(5*time.Second)))
	buffer := make([]byte, 100)
	if n, err := session.Read(buffer); err != nil || string(buffer[:n]) != "db away" {
		t.Errorf("after the tunnel was back the session got %q, %v", buffer[:n], err)
	}
	answers(t, p.client, "tcp", podIP+":5432", "db")

	// Without our chains it leaks: the test can fail.
	ip(t, p.proxy, "link del tailscale0")
	refuses(t, p.client, "tcp", podIP+":5432")
	nftCommand(t, p.proxy, "", "flush chain ip egress forward; flush chain ip egress unroutable")
	_, _ = dial(t, p.client, "tcp", podIP+":5432", 200*time.Millisecond)
	if leaked := heard(); !slices.ContainsFunc(leaked, func(s seen) bool { return s.destination == target4 }) {
		t.Error("nothing was heard of a leak either")
	}
}

func TestWithoutAnyRoute(t *testing.T) {
	p := newPath(t)
	apply(t, p.rules, input(database()), true)
	ip(t, p.proxy, "link del tailscale0")
	for _, address := range []string{podIP + ":5432", "[" + pod6 + "]:5432"} {
		refuses(t, p.client, "tcp", address)
		refuses(t, p.client, "udp", address)
	}
}

func TestThePodIsNoRouter(t *testing.T) {
	p := newPath(t)
	echo(t, p.target, "100.64.0.9:15432", "db")
	echo(t, p.client, clientIP+":7000", "client")
	echo(t, p.proxy, "100.64.0.1:9002", "health")
	ip(t, p.client, "route add 100.64.0.0/10 via "+podIP)
	ip(t, p.target, "route add 10.77.0.0/24 via 100.64.0.1")
	// The way is open as long as there are no rules: the test can fail.
	answers(t, p.client, "tcp", "100.64.0.9:15432", "db")
	answers(t, p.target, "tcp", clientIP+":7000", "client")
	for _, in := range []rules.Input{
		input(database()),
		input(rules.Target{ID: "app/host", AllPorts: true, Addr4: target4}),
	} {
		apply(t, p.rules, in, true)
		refuses(t, p.client, "tcp", "100.64.0.9:15432")
		refuses(t, p.client, "udp", "100.64.0.9:15432")
		silent(t, p.target, "tcp", clientIP+":7000")
		silent(t, p.target, "udp", clientIP+":7000")
		silent(t, p.target, "tcp", "100.64.0.1:9002")
		silent(t, p.target, "tcp", "100.64.0.1:5432")
	}
}

// A subnet route that covers the network of Pods: tailscaled's policy routing
// sends what is for clients into the tunnel.
func TestSubnetRouteOverThePodNetwork(t *testing.T) {
	p := newPath(t)
	echo(t, p.target, "100.64.0.9:15432", "db")
	echo(t, p.target, netip.AddrPortFrom(target6, 15432).String(), "db")
	echo(t, p.proxy, podIP+":9002", "health")
	apply(t, p.rules, input(database()), true)
	ip(t, p.proxy, "route add 10.77.0.0/24 dev tailscale0 table 52")
	ip(t, p.proxy, "-6 route add fd77::/64 dev tailscale0 table 52")
	for _, pod := range []string{podIP, "[" + pod6 + "]"} {
		answers(t, p.client, "tcp", pod+":5432", "db")
		answers(t, p.client, "udp", pod+":5432", "db")
		refuses(t, p.client, "tcp", pod+":1")
		refuses(t, p.client, "udp", pod+":1")
	}
	answers(t, p.client, "tcp", podIP+":9002", "health")
	ping(t, p, false)

	// Each of the two chains is needed: the test can fail.
	nftCommand(t, p.proxy, "", "flush chain ip egress reply")
	silent(t, p.client, "tcp", podIP+":5432")
	verify(t, p.rules, true)
	answers(t, p.client, "tcp", podIP+":5432", "db")
	nftCommand(t, p.proxy, "", "flush chain ip egress output")
	silent(t, p.client, "tcp", podIP+":9002")
	verify(t, p.rules, true)
	answers(t, p.client, "tcp", podIP+":9002", "health")
}

// What the Pod itself asks for (the API server, DNS) goes to the cluster although
// a subnet route covers it; what is for devices still goes into the tunnel.
func TestOwnConnectionsUnderASubnetRoute(t *testing.T) {
	p := newPath(t)
	client6 := netip.MustParseAddr("fd77::2")
	echo(t, p.client, clientIP+":6443", "cluster")
	echo(t, p.client, netip.AddrPortFrom(client6, 6443).String(), "cluster")
	echo(t, p.target, "100.64.0.9:15432", "db")
	apply(t, p.rules, input(database()), true)
	ask := func() {
		t.Helper()
		for _, address := range []string{clientIP + ":6443", netip.AddrPortFrom(client6, 6443).String()} {
			answers(t, p.proxy, "tcp", address, "cluster")
			answers(t, p.proxy, "udp", address, "cluster")
		}
		answers(t, p.proxy, "tcp", "100.64.0.9:15432", "db")
	}
	ask()
	earlier := must(dial(t, p.proxy, "tcp", clientIP+":6443", atOnce))(t)
	ip(t, p.proxy, "route add 10.77.0.0/24 dev tailscale0 table 52")
	ip(t, p.proxy, "-6 route add fd77::/64 dev tailscale0 table 52")
	ask()
	later := must(dial(t, p.proxy, "tcp", clientIP+":6443", atOnce))(t)
	for _, conn := range []net.Conn{earlier, later} {
		must(say(conn, "hello", time.Second))(t)
	}
	ip(t, p.proxy, "route del 10.77.0.0/24 dev tailscale0 table 52")
	for _, conn := range []net.Conn{earlier, later} {
		must(say(conn, "hello", time.Second))(t)
	}
}

func TestMovedTarget(t *testing.T) {
	p := newPath(t)
	echo(t, p.target, "100.64.0.9:15432", "old")
	echo(t, p.target, "100.64.0.10:15432", "new")
	in := input(database())
	apply(t, p.rules, in, true)
	session := must(dial(t, p.client, "tcp", podIP+":5432", time.Second))(t)
	defer func() { _ = session.Close() }()
	datagrams := must(dial(t, p.client, "udp", podIP+":5432", time.Second))(t)
	defer func() { _ = datagrams.Close() }()
	for _, conn := range []net.Conn{session, datagrams} {
		if got, err := say(conn, "hello", time.Second); got != "old hello" {
			t.Fatal(got, err)
		}
	}
	if active, err := p.flows.Active(); err != nil || active != 1 {
		t.Errorf("%d flows are active, %v, want the one of TCP", active, err)
	}

	in.Targets[0].Addr4 = other4
	moved := rules.Compile(in)
	apply(t, p.rules, in, true)
	answers(t, p.client, "tcp", podIP+":5432", "new")
	// Flows in progress stay where they are until they are deleted.
	if got, err := say(session, "hello", time.Second); got != "old hello" {
		t.Errorf("before the deletion: %q, %v", got, err)
	}
	if n, err := p.flows.Delete(moved.Stale); err != nil || n != 2 {
		t.Errorf("deleted %d flows, %v, want 2", n, err)
	}
	if got, err := say(datagrams, "hello", time.Second); got != "new hello" {
		t.Errorf("the UDP flow got %q, %v", got, err)
	}
	isReset(t, session)
	if n, err := p.flows.Delete(moved.Stale); err != nil || n != 0 {
		t.Errorf("deleted %d more flows, %v", n, err)
	}
}

// All flows of a target end with it, however their next packet looks.
func TestReset(t *testing.T) {
	for _, protocolIP := range []string{podIP, "[" + pod6 + "]"} {
		t.Run(protocolIP, func(t *testing.T) {
			p := newPath(t)
			echo(t, p.target, "100.64.0.9:15432", "db")
			echo(t, p.target, netip.AddrPortFrom(target6, 15432).String(), "db")
			in := input(database())
			apply(t, p.rules, in, true)
			var sessions []*net.TCPConn
			for range 2 {
				conn := must(dial(t, p.client, "tcp", protocolIP+":5432", time.Second))(t)
				defer func() { _ = conn.Close() }()
				if got, err := say(conn, "hello", time.Second); got != "db hello" {
					t.Fatal(got, err)
				}
				sessions = append(sessions, conn.(*net.TCPConn))
			}
			in.Reset = true
			apply(t, p.rules, in, true)
			if n, err := p.flows.Delete(rules.Compile(in).Stale); err != nil || n != 2 {
				t.Fatalf("deleted %d flows, %v, want 2", n, err)
			}
			isReset(t, sessions[0])
			// The first packet of this one is its FIN.
			check(t, sessions[1].CloseWrite())
			check(t, sessions[1].SetReadDeadline(time.Now().Add(time.Second)))
			if _, err := sessions[1].Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a half-closed session got %v, want a reset", err)
			}
			refuses(t, p.client, "tcp", protocolIP+":5432")
			if active, err := p.flows.Active(); err != nil || active != 0 {
				t.Errorf("%d flows are active, %v", active, err)
			}
		})
	}
}

// Replacing the whole table does not disturb flows in progress.
func TestFlowsSurviveReplacement(t *testing.T) {
	p := newPath(t)
	echo(t, p.target, "100.64.0.9:15432", "db")
	apply(t, p.rules, input(database()), true)
	session := must(dial(t, p.client, "tcp", podIP+":5432", time.Second))(t)
	defer func() { _ = session.Close() }()
	for i := range 20 {
		// An own chain in our table makes Verify replace all of it.
		nftCommand(t, p.proxy, "", "add chain ip egress foreign")
		verify(t, p.rules, true)
		if got, err := say(session, "hello", time.Second); got != "db hello" {
			t.Fatalf("after replacement %d: %q, %v", i, got, err)
		}
		answers(t, p.client, "tcp", podIP+":5432", "db")
	}
}
