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

// Package rules decides what the kernel of a proxy Pod is to do with packets.
// It is pure: the same Input gives the same Ruleset, and String shows it as the
// text that "nft -f -" loads.
package rules

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

const (
	// TableName is the name of our table in each family; no other is touched.
	TableName = "egress"
	// MapName is the map in it, from listener to address and port.
	MapName = "targets"
	// MapSize is how many elements the map may hold: every port of two protocols.
	MapSize = 1 << 17
	// Tunnel is the interface of tailscaled.
	Tunnel = "tailscale0"
	// BypassMark on a packet makes tailscaled's policy routing (its rule 5210,
	// mark 0x80000/0xff0000) use the main table rather than the tunnel.
	BypassMark = 0x80000
)

// Protocol numbers of IP.
const (
	ICMP   uint8 = 1
	TCP    uint8 = 6
	UDP    uint8 = 17
	ICMPv6 uint8 = 58
)

// Input is all that decides the rules.
type Input struct {
	// Own4 and Own6 are the proxy's addresses on the tailnet. Without one, clients
	// of that family are refused.
	Own4, Own6 netip.Addr
	// Pod4 and Pod6 are the Pod's addresses in the cluster.
	Pod4, Pod6 netip.Addr
	// HealthPort (TCP) and TailscaledPort (UDP) are served by the Pod itself: they
	// are reachable from the cluster and never forwarded.
	HealthPort, TailscaledPort uint16
	// Families are the IP families that the Pod can forward.
	Families Families
	Targets  []Target
	// Reset refuses everything, flows in progress included: once their conntrack
	// entries are removed, the next packet of each is answered by a reset.
	Reset bool
}

// Families is a set of IP families.
type Families struct{ IPv4, IPv6 bool }

// Target is where the listeners of one target lead now.
type Target struct {
	// ID orders targets; of two that claim one listener the first has it.
	ID string
	// AllPorts leads everything that is addressed to the Pod to the target.
	AllPorts  bool
	Listeners []proxyconfig.Listener
	// Addr4 and Addr6 are the address to use; invalid means that clients of that
	// family are refused.
	Addr4, Addr6 netip.Addr
}

// Reserved is whether the Pod itself serves the port of l, so that no target can
// have it.
func (in Input) Reserved(l proxyconfig.Listener) bool {
	switch l.Protocol {
	case proxyconfig.TCP:
		return l.Port == in.HealthPort
	case proxyconfig.UDP:
		return l.Port == in.TailscaledPort
	}
	return false
}

// Compile turns in into rules. Listeners that are reserved, or whose target has
// no usable address, get no element: what is addressed to them is refused by the
// same rule as every other port.
func Compile(in Input) Ruleset {
	byID := func(a, b Target) int { return cmp.Compare(a.ID, b.ID) }
	if !slices.IsSortedFunc(in.Targets, byID) {
		in.Targets = slices.Clone(in.Targets)
		slices.SortStableFunc(in.Targets, byID)
	}
	return Ruleset{
		IPv4: in.table(IPv4, in.Own4, in.Pod4, in.Families.IPv4, func(t *Target) netip.Addr { return t.Addr4 }),
		IPv6: in.table(IPv6, in.Own6, in.Pod6, in.Families.IPv6, func(t *Target) netip.Addr { return t.Addr6 }),
	}
}

func (in Input) table(f Family, own, pod netip.Addr, forwards bool, address func(*Target) netip.Addr) Table {
	own = own.Unmap()
	if !f.has(own) {
		own = netip.Addr{}
	}
	t := Table{Family: f, Own: own, Pod: pod}
	if forwards && own.IsValid() && !in.Reset {
		usable := func(target *Target) netip.Addr {
			addr := address(target).Unmap()
			// Anything but a unicast address, and the proxy's own, would end in the Pod.
			if !f.has(addr) || !addr.IsGlobalUnicast() || addr == own {
				return netip.Addr{}
			}
			return addr
		}
		t.All = in.allPorts(usable)
		if !t.All.IsValid() {
			t.Elements = in.elements(usable)
		}
	}
	t.Chains = in.chains(t)
	return t
}

// allPorts is the address that everything goes to; invalid where ports are
// listed.
func (in Input) allPorts(address func(*Target) netip.Addr) netip.Addr {
	for i := range in.Targets {
		if in.Targets[i].AllPorts {
			return address(&in.Targets[i])
		}
	}
	return netip.Addr{}
}

// elements sorts by counting: with 50,000 listeners it takes part in the time
// from a change of one to the kernel's.
func (in Input) elements(address func(*Target) netip.Addr) []Element {
	all := make([]Element, 0, len(in.Targets))
	// The place in all of each listener, counted from 1.
	var places [2][1 << 16]int32
	for i := range in.Targets {
		t := &in.Targets[i]
		addr := address(t)
		if t.AllPorts || !addr.IsValid() {
			continue
		}
		for _, l := range t.Listeners {
			slot, number := protocolSlot(l.Protocol)
			if number == 0 || l.Port == 0 || in.Reserved(l) || places[slot][l.Port] != 0 {
				continue
			}
			all = append(all, Element{Key: Key{Protocol: number, Port: l.Port}, To: netip.AddrPortFrom(addr, l.TargetPort)})
			places[slot][l.Port] = int32(len(all))
		}
	}
	if slices.IsSortedFunc(all, func(a, b Element) int { return a.Compare(b.Key) }) {
		return all
	}
	sorted := make([]Element, 0, len(all))
	for slot := range places {
		for _, place := range places[slot] {
			if place != 0 {
				sorted = append(sorted, all[place-1])
			}
		}
	}
	return sorted
}

// protocolSlot is the place and the number of p; number 0 where it has no ports.
func protocolSlot(p proxyconfig.Protocol) (slot int, number uint8) {
	switch p {
	case proxyconfig.TCP:
		return 0, TCP
	case proxyconfig.UDP:
		return 1, UDP
	}
	return 0, 0
}
