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

package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// packet that the tracer sends through a table. The fields below the line are
// found out on the way.
type packet struct {
	in       string
	out      string // by which it would leave if its destination is not the Pod
	protocol uint8
	dst      netip.AddrPort
	flags    uint8
	state    ConnStates
	reply    bool
	dnat     bool // the connection is translated already

	mark uint32
	src  netip.Addr
}

// pod are the addresses of the Pod.
var pod = []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("100.64.0.1"), netip.MustParseAddr("fd00::5")}

// trace returns where p ends: "local", "refused", "dropped", or the address that
// it leaves for. It says nothing of how the kernel finds the route.
func trace(t Table, p packet) string {
	p.run(t, "reply")
	if p.state == New {
		// Only the first packet of a connection sees this chain.
		p.run(t, "prerouting")
	}
	if _, refused := p.run(t, "unroutable").(Reject); refused {
		return "refused"
	}
	hook := "forward"
	if slices.Contains(pod, p.dst.Addr()) {
		hook, p.out = "input", ""
	}
	switch verdict := p.run(t, hook).(type) {
	case Drop:
		return "dropped"
	case Reject:
		if verdict.With == HostUnreachable {
			return "refused for now"
		}
		return "refused"
	}
	if hook == "input" {
		return "local"
	}
	p.run(t, "postrouting")
	if p.mark == BypassMark {
		return "to the client"
	}
	return fmt.Sprintf("%s from %s", p.dst, p.src)
}

func (p *packet) run(t Table, chain string) Statement {
	i := slices.IndexFunc(t.Chains, func(c Chain) bool { return c.Name == chain })
	for _, r := range t.Chains[i].Rules {
		if !slices.ContainsFunc(r.Matches, func(m Match) bool { return !p.matches(m) }) && p.do(t, r.Statement) {
			return r.Statement
		}
	}
	return Accept{}
}

// do is whether the chain ends with s.
func (p *packet) do(t Table, s Statement) bool {
	switch s := s.(type) {
	case Accept, Drop, Reject:
		return true
	case SetMark:
		p.mark = s.Mark
	case ClampMSS:
	case ToTarget:
		for _, e := range t.Elements {
			if e.Key == (Key{Protocol: p.protocol, Port: p.dst.Port()}) {
				p.dst, p.dnat = e.To, true
				return true
			}
		}
	case ToAddress:
		p.dst, p.dnat = netip.AddrPortFrom(s.Addr, p.dst.Port()), true
		return true
	case FromAddress:
		p.src = s.Addr
		return true
	default:
		panic(fmt.Sprintf("the tracer does not know %T", s))
	}
	return false
}

func (p *packet) matches(m Match) bool {
	switch m := m.(type) {
	case InInterface:
		return p.in == m.Name != m.Not
	case OutInterface:
		return p.out == m.Name != m.Not
	case ToElsewhere:
		return !slices.Contains(pod, p.dst.Addr())
	case RouteElsewhere:
		return p.out != m.Interface
	case Protocol:
		return p.protocol == m.Number
	case DestinationPort:
		return p.protocol == m.Protocol && p.dst.Port() == m.Port
	case TCPFlags:
		return p.flags&m.Mask == m.Value != m.Not
	case ConnState:
		return p.state&m.States != 0
	case Translated:
		return p.dnat && p.state != Invalid
	case Source:
		return p.src == m.Addr != m.Not
	case Direction:
		return p.reply == m.Reply && p.state != Invalid
	}
	panic(fmt.Sprintf("the tracer does not know %T", m))
}

func TestWherePacketsEnd(t *testing.T) {
	at := netip.MustParseAddrPort
	client := func(change func(*packet)) packet {
		p := packet{in: "eth0", out: Tunnel, protocol: TCP, dst: at("10.0.0.5:5432"), flags: SYN, state: New}
		change(&p)
		return p
	}
	as := func(*packet) {}
	toPort := func(protocol uint8, addr string) func(*packet) {
		return func(p *packet) { p.protocol, p.dst, p.flags = protocol, at(addr), SYN }
	}
	tests := []struct {
		name, rules string
		packet      packet
		want        string
	}{
		{"listener", "listeners", client(as), "100.64.0.9:15432 from 100.64.0.1"},
		{"listener of UDP", "listeners", client(toPort(UDP, "10.0.0.5:53")), "100.64.0.9:53 from 100.64.0.1"},
		{"no tunnel", "listeners", client(func(p *packet) { p.out = "eth0" }), "refused"},
		{"no tunnel for a session", "listeners", client(func(p *packet) {
			p.out, p.dst, p.state, p.dnat, p.flags = "eth0", at("100.64.0.9:15432"), Established, true, ACK
		}), "refused for now"},
		{"no tunnel for UDP in progress", "listeners", client(func(p *packet) {
			p.out, p.dst, p.state, p.dnat, p.protocol = "eth0", at("100.64.0.9:53"), Established, true, UDP
		}), "refused"},
		{"unresolved", "listeners", client(toPort(TCP, "10.0.0.5:443")), "refused"},
		{"no listener", "listeners", client(toPort(UDP, "10.0.0.5:5432")), "refused"},
		{"health", "listeners", client(toPort(TCP, "10.0.0.5:9002")), "local"},
		{"tailscaled", "listeners", client(toPort(UDP, "10.0.0.5:41641")), "local"},
		{"ping of the Pod", "listeners", client(toPort(ICMP, "10.0.0.5:0")), "local"},
		{"reply to the Pod", "listeners", client(func(p *packet) { p.dst, p.state = at("10.0.0.5:33333"), Established }), "local"},
		{"ICMP error for the Pod", "listeners", client(func(p *packet) { p.protocol, p.state = ICMP, Related }), "local"},
		{"Pod to itself", "listeners", client(func(p *packet) { p.in, p.state = "lo", Established }), "local"},
		{"use as a router", "listeners", client(toPort(TCP, "100.64.0.9:5432")), "refused"},
		{"use as a router for a ping", "all-ports", client(toPort(ICMP, "100.64.0.9:0")), "refused"},
		{"mid-stream of a lost session", "listeners", client(func(p *packet) { p.flags = ACK }), "local"},
		{"end of a lost session", "listeners", client(func(p *packet) { p.flags, p.state = FIN|ACK, Invalid }), "refused"},
		{"stray segment", "listeners", client(func(p *packet) { p.flags, p.state = ACK, Invalid }), "dropped"},
		{"stray segment after a reset", "reset", client(func(p *packet) { p.flags, p.state = ACK, Invalid }), "refused"},
		{"new after a reset", "reset", client(as), "refused"},
		{"health after a reset", "reset", client(toPort(TCP, "10.0.0.5:9002")), "local"},
		{"not connected", "not-connected", client(as), "refused"},
		{"reply of a target", "listeners", packet{in: Tunnel, out: "eth0", protocol: TCP, dst: at("10.0.0.7:40000"), state: Established, reply: true, dnat: true}, "to the client"},
		{"ICMP error from behind the tunnel", "listeners", packet{in: Tunnel, out: "eth0", protocol: ICMP, dst: at("10.0.0.7:0"), state: Related, reply: true, dnat: true}, "to the client"},
		{"peer connects", "listeners", packet{in: Tunnel, protocol: TCP, dst: at("100.64.0.1:9002"), flags: SYN, state: New}, "dropped"},
		{"peer connects to a listener", "all-ports", packet{in: Tunnel, protocol: TCP, dst: at("100.64.0.1:5432"), flags: SYN, state: New}, "dropped"},
		{"peer pings", "all-ports", packet{in: Tunnel, protocol: ICMP, dst: at("100.64.0.1:0"), state: New}, "dropped"},
		{"peer uses the Pod as a router", "all-ports", packet{in: Tunnel, out: "eth0", protocol: UDP, dst: at("10.0.0.7:53"), state: New}, "dropped"},
		{"all ports", "all-ports", client(toPort(TCP, "10.0.0.5:7")), "100.64.0.9:7 from 100.64.0.1"},
		{"all ports, ping", "all-ports", client(toPort(ICMP, "10.0.0.5:0")), "100.64.0.9:0 from 100.64.0.1"},
		{"all ports, health", "all-ports", client(toPort(TCP, "10.0.0.5:9002")), "local"},
		{"all ports, tailscaled", "all-ports", client(toPort(UDP, "10.0.0.5:41641")), "local"},
		{"all ports, own old connection", "all-ports", client(func(p *packet) { p.dst, p.flags = at("10.0.0.5:33333"), ACK }), "local"},
		{"all ports, unresolved", "all-ports-unresolved", client(toPort(TCP, "10.0.0.5:7")), "refused"},
		{"target is the Pod", "conflicts", client(toPort(TCP, "10.0.0.5:1001")), "refused"},
		{"target is loopback", "conflicts", client(toPort(TCP, "10.0.0.5:1002")), "refused"},
		{"reserved port", "conflicts", client(toPort(TCP, "10.0.0.5:9002")), "local"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			table := Compile(golden(t, test.rules)).IPv4
			if got := trace(table, test.packet); got != test.want {
				t.Errorf("ended as %q, want %q", got, test.want)
			}
		})
	}
}

// A target whose address is another one of the Pod's own, which Compile cannot
// know, is refused by the rules.
func TestTargetThatIsThePodIsRefused(t *testing.T) {
	in := golden(t, "all-ports")
	in.Targets[0].Addr4 = pod[0]
	p := packet{in: "eth0", protocol: TCP, dst: netip.MustParseAddrPort("10.0.0.5:80"), flags: SYN, state: New}
	if got := trace(Compile(in).IPv4, p); got != "refused" {
		t.Errorf("ended as %q", got)
	}
}
