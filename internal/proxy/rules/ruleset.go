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
	"cmp"
	"net/netip"
	"slices"
)

// Family of IP addresses, in nft's words.
type Family string

// The families.
const (
	IPv4 Family = "ip"
	IPv6 Family = "ip6"
)

func (f Family) has(a netip.Addr) bool { return a.IsValid() && a.Is4() == (f == IPv4) }

// devices is where all devices of tailnets have their addresses.
func (f Family) devices() netip.Prefix {
	if f == IPv4 {
		return netip.MustParsePrefix("100.64.0.0/10")
	}
	return netip.MustParsePrefix("fd7a:115c:a1e0::/48")
}

func (f Family) icmp() uint8 {
	if f == IPv4 {
		return ICMP
	}
	return ICMPv6
}

// Ruleset is one table per family.
type Ruleset struct{ IPv4, IPv6 Table }

// Table is the whole content of one table.
type Table struct {
	Family Family
	// Own is the proxy's tailnet address; invalid where it has none.
	Own netip.Addr
	// Pod is the Pod's address in the cluster; invalid where it has none.
	Pod netip.Addr
	// All is where everything goes that is addressed to the Pod; invalid where the
	// elements decide.
	All netip.Addr
	// Chains are all base chains with policy accept. Their number and that of
	// their rules do not depend on the number of targets.
	Chains []Chain
	// Elements of the map are sorted by key.
	Elements []Element
}

// Key of the map: a listener.
type Key struct {
	Protocol uint8
	Port     uint16
}

// Compare orders keys by protocol and port.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Protocol, other.Protocol), cmp.Compare(k.Port, other.Port))
}

// Element of the map: a listener and where it leads.
type Element struct {
	Key
	To netip.AddrPort
}

// Hook is the place of a chain in the path of packets.
type Hook string

// The hooks.
const (
	Prerouting  Hook = "prerouting"
	InputHook   Hook = "input"
	Forward     Hook = "forward"
	Output      Hook = "output"
	Postrouting Hook = "postrouting"
)

// ChainType is nft's type of a base chain.
type ChainType string

// The types.
const (
	Filter ChainType = "filter"
	NAT    ChainType = "nat"
	Route  ChainType = "route"
)

// Priority orders the chains of a hook.
type Priority int32

// The priorities.
const (
	Mangle         Priority = -150
	DstNAT         Priority = -100
	FilterPriority Priority = 0
	SrcNAT         Priority = 100
)

// Chain is a base chain.
type Chain struct {
	Name     string
	Type     ChainType
	Hook     Hook
	Priority Priority
	Rules    []Rule
}

// Equal is whether two chains do the same.
func (c Chain) Equal(other Chain) bool {
	return c.SameHook(other) && slices.EqualFunc(c.Rules, other.Rules, Rule.Equal)
}

// SameHook is whether two chains differ in nothing but their rules.
func (c Chain) SameHook(other Chain) bool {
	return c.Name == other.Name && c.Type == other.Type && c.Hook == other.Hook && c.Priority == other.Priority
}

// Rule does its statement with packets that match all of its matches.
type Rule struct {
	Matches   []Match
	Statement Statement
}

// Equal is whether two rules do the same.
func (r Rule) Equal(other Rule) bool {
	return r.Statement == other.Statement && slices.Equal(r.Matches, other.Matches)
}

// Match is one of the types below; all are comparable.
type Match interface{ match() }

// The matches.
type (
	// InInterface is the name of the interface that the packet came in by.
	InInterface struct {
		Name string
		Not  bool
	}
	// OutInterface is the name of the interface that the packet leaves by.
	OutInterface struct {
		Name string
		Not  bool
	}
	// ToElsewhere is a destination that is no address of the Pod.
	ToElsewhere struct{}
	// RouteElsewhere is a destination whose route does not lead out of the interface
	// of that name, or that has no route.
	RouteElsewhere struct{ Interface string }
	// Protocol is the number of the transport protocol.
	Protocol struct{ Number uint8 }
	// DestinationPort is a port of TCP or UDP.
	DestinationPort struct {
		Protocol uint8
		Port     uint16
	}
	// TCPFlags is whether the flags under Mask are, or are not, just Value.
	TCPFlags struct {
		Mask, Value uint8
		Not         bool
	}
	// ConnState is any of these states of the connection.
	ConnState struct{ States ConnStates }
	// Translated is a connection whose destination was translated: by us.
	Translated struct{}
	// Direction is that of the packet within its connection.
	Direction struct{ Reply bool }
	// Source is the source address.
	Source struct {
		Addr netip.Addr
		Not  bool
	}
	// DestinationOutside is any destination address that is not of Prefix.
	DestinationOutside struct{ Prefix netip.Prefix }
)

// ConnStates is a set of states of connections.
type ConnStates uint32

// The states, by the kernel's numbers.
const (
	Invalid     ConnStates = 1
	Established ConnStates = 2
	Related     ConnStates = 4
	New         ConnStates = 8
)

// The flags of TCP.
const (
	FIN uint8 = 0x01
	SYN uint8 = 0x02
	RST uint8 = 0x04
	ACK uint8 = 0x10
)

func (InInterface) match()        {}
func (OutInterface) match()       {}
func (ToElsewhere) match()        {}
func (RouteElsewhere) match()     {}
func (Protocol) match()           {}
func (DestinationPort) match()    {}
func (TCPFlags) match()           {}
func (ConnState) match()          {}
func (Translated) match()         {}
func (Direction) match()          {}
func (Source) match()             {}
func (DestinationOutside) match() {}

// Statement is one of the types below; all are comparable.
type Statement interface{ statement() }

// The statements.
type (
	// Accept ends the chain.
	Accept struct{}
	// Drop ends the packet in silence.
	Drop struct{}
	// Reject ends the packet with an answer.
	Reject struct{ With Answer }
	// SetMark marks the packet.
	SetMark struct{ Mark uint32 }
	// ClampMSS lowers the segment size that a SYN offers to what the route takes.
	ClampMSS struct{}
	// ToTarget translates the destination to what the map says; a packet that the
	// map does not know goes on to the next rule.
	ToTarget struct{}
	// ToAddress translates the destination address and keeps the port.
	ToAddress struct{ Addr netip.Addr }
	// FromAddress translates the source address.
	FromAddress struct{ Addr netip.Addr }
)

// Answer of a Reject.
type Answer uint8

// The answers.
const (
	// TCPReset needs a match of Protocol TCP before it.
	TCPReset Answer = iota
	PortUnreachable
	HostUnreachable
)

func (Accept) statement()      {}
func (Drop) statement()        {}
func (Reject) statement()      {}
func (SetMark) statement()     {}
func (ClampMSS) statement()    {}
func (ToTarget) statement()    {}
func (ToAddress) statement()   {}
func (FromAddress) statement() {}
