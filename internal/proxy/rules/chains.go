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

// fresh are the flags that a connection starts with: SYN alone.
var fresh = TCPFlags{Mask: FIN | SYN | RST | ACK, Value: SYN}

// midstream is every segment of TCP but the first.
var midstream = TCPFlags{Mask: fresh.Mask, Value: fresh.Value, Not: true}

var (
	fromTunnel    = InInterface{Name: Tunnel}
	notFromTunnel = InInterface{Name: Tunnel, Not: true}
	toTunnel      = OutInterface{Name: Tunnel}
	notToTunnel   = OutInterface{Name: Tunnel, Not: true}
	tcp           = Protocol{Number: TCP}
)

func rule(s Statement, m ...Match) Rule { return Rule{Matches: m, Statement: s} }

// refuse answers at once, so that a client need not wait for a time-out.
func refuse(m ...Match) []Rule {
	withTCP := append([]Match{tcp}, m...)
	return []Rule{
		rule(Reject{With: TCPReset}, withTCP...),
		rule(Reject{With: PortUnreachable}, m...),
	}
}

// chains have policy accept and end in explicit verdicts: a chain whose rules
// are being replaced runs for a moment without any, and with policy drop it
// would lose the packets of that moment.
func (in Input) chains(t Table) []Chain {
	return []Chain{
		{Name: "reply", Type: Filter, Hook: Prerouting, Priority: Mangle, Rules: t.reply()},
		{Name: "prerouting", Type: NAT, Hook: Prerouting, Priority: DstNAT, Rules: in.prerouting(t)},
		{Name: "unroutable", Type: Filter, Hook: Prerouting, Priority: FilterPriority, Rules: unroutable()},
		{Name: "input", Type: Filter, Hook: InputHook, Priority: FilterPriority, Rules: in.input(t)},
		{Name: "forward", Type: Filter, Hook: Forward, Priority: FilterPriority, Rules: t.forward()},
		{Name: "output", Type: Route, Hook: Output, Priority: Mangle, Rules: t.output()},
		{Name: "postrouting", Type: NAT, Hook: Postrouting, Priority: SrcNAT, Rules: t.postrouting()},
	}
}

// reply keeps answers of targets out of the tunnel where a subnet route covers
// the client's address.
func (t Table) reply() []Rule {
	return []Rule{rule(SetMark{Mark: BypassMark}, fromTunnel, Direction{Reply: true}, Translated{})}
}

// prerouting sees the first packet of a connection only. What is mid-stream
// belonged to a connection that is gone and is not picked up again.
func (in Input) prerouting(t Table) []Rule {
	var forward Statement = ToTarget{}
	if t.All.IsValid() {
		forward = ToAddress{Addr: t.All}
	}
	return []Rule{
		rule(Accept{}, fromTunnel),
		rule(Accept{}, ToElsewhere{}),
		rule(Accept{}, tcp, midstream),
		rule(Accept{}, DestinationPort{Protocol: TCP, Port: in.HealthPort}),
		rule(Accept{}, DestinationPort{Protocol: UDP, Port: in.TailscaledPort}),
		rule(forward),
	}
}

// unroutable refuses clients while no route leads into the tunnel. The forward
// chain would be late: by then the kernel has sent a client of UDP the advice to
// use another router, which translation drops, and then limits further ICMP to it.
func unroutable() []Rule {
	return refuse(ConnState{States: New}, notFromTunnel, Translated{}, RouteElsewhere{Interface: Tunnel})
}

// input refuses whatever is new and not for the Pod itself: listeners of targets
// without an address among it.
func (in Input) input(t Table) []Rule {
	rules := []Rule{
		rule(Accept{}, InInterface{Name: "lo"}),
		rule(Accept{}, ConnState{States: Established | Related}),
	}
	// A target that is the Pod itself must not open the Pod's own ports.
	rules = append(rules, refuse(Translated{})...)
	rules = append(rules, rule(Accept{}, notFromTunnel, Protocol{Number: t.Family.icmp()}))
	if in.Reset {
		rules = append(rules, rule(Reject{With: TCPReset}, notFromTunnel, tcp, ConnState{States: Invalid}))
	} else {
		// A FIN of a connection that is gone is invalid, not new. Other invalid
		// segments may be strays of a live connection, which a reset would end.
		rules = append(rules, rule(Reject{With: TCPReset}, notFromTunnel, tcp,
			TCPFlags{Mask: FIN | RST, Value: FIN}, ConnState{States: Invalid}))
	}
	rules = append(rules,
		rule(Drop{}, ConnState{States: Invalid}),
		// The Pod's own connections may be older than conntrack in this namespace,
		// and the kernel resets those that are not the Pod's.
		rule(Accept{}, tcp, midstream),
		rule(Drop{}, fromTunnel),
		rule(Accept{}, DestinationPort{Protocol: TCP, Port: in.HealthPort}),
		rule(Accept{}, DestinationPort{Protocol: UDP, Port: in.TailscaledPort}),
	)
	return append(rules, refuse()...)
}

// forward lets our own flows pass and nothing else: the Pod is no router.
func (t Table) forward() []Rule {
	syn := TCPFlags{Mask: SYN | RST, Value: SYN}
	rules := []Rule{
		rule(ClampMSS{}, fromTunnel, tcp, syn),
		rule(ClampMSS{}, toTunnel, tcp, syn),
		rule(Accept{}, notFromTunnel, toTunnel, Direction{}, Translated{}),
		rule(Accept{}, fromTunnel, notToTunnel, Direction{Reply: true}, Translated{}),
		rule(Drop{}, fromTunnel),
		// While tailscaled restarts there is no route into the tunnel. Sessions
		// outlive that, if they are told of it by an error that TCP retries after.
		rule(Reject{With: HostUnreachable}, tcp, ConnState{States: Established}, Translated{}),
	}
	return append(rules, refuse()...)
}

// output keeps what the Pod itself answers (probes, refusals) out of the tunnel
// where a subnet route covers the address of whoever asked.
func (t Table) output() []Rule {
	var rules []Rule
	if t.Own.IsValid() {
		rules = append(rules, rule(SetMark{Mark: BypassMark}, toTunnel, Source{Addr: t.Own, Not: true}))
	}
	rules = append(rules, rule(SetMark{Mark: BypassMark}, toTunnel, Direction{Reply: true}, Translated{}))
	if t.bypasses() {
		rules = append(rules, rule(SetMark{Mark: BypassMark}, toTunnel, Direction{},
			ConnState{States: New | Established}, DestinationOutside{Prefix: t.Family.devices()}))
	}
	return rules
}

// bypasses is whether the Pod's own connections can be kept out of the tunnel
// where a subnet route covers the API server or the cluster's DNS: neither process
// of the Pod needs anything behind a subnet router, and not all of their sockets
// can be marked. A socket has chosen its address by that route already.
func (t Table) bypasses() bool { return t.Own.IsValid() && t.Family.has(t.Pod) }

func (t Table) postrouting() []Rule {
	if !t.Own.IsValid() {
		return nil
	}
	rules := []Rule{rule(FromAddress{Addr: t.Own}, toTunnel, Translated{})}
	if t.bypasses() {
		rules = append(rules, rule(FromAddress{Addr: t.Pod}, notToTunnel, Source{Addr: t.Own}))
	}
	return rules
}
