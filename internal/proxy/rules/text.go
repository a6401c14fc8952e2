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
	"strings"
)

// String is what "nft -f -" loads to get the same tables from nothing.
func (r Ruleset) String() string { return r.IPv4.String() + r.IPv6.String() }

// String is what "nft -f -" loads to get the same table from nothing.
func (t Table) String() string {
	var b strings.Builder
	address := "ipv4_addr"
	if t.Family == IPv6 {
		address = "ipv6_addr"
	}
	fmt.Fprintf(&b, "table %s %s {\n", t.Family, TableName)
	fmt.Fprintf(&b, "\tmap %s {\n\t\ttype inet_proto . inet_service : %s . inet_service\n\t\tsize %d\n", MapName, address, MapSize)
	for i, e := range t.Elements {
		prefix, suffix := "\t\t             ", ","
		if i == 0 {
			prefix = "\t\telements = { "
		}
		if i == len(t.Elements)-1 {
			suffix = " }"
		}
		fmt.Fprintf(&b, "%s%s . %d : %s . %d%s\n", prefix, protocolName(e.Protocol), e.Port, e.To.Addr(), e.To.Port(), suffix)
	}
	b.WriteString("\t}\n")
	for _, c := range t.Chains {
		fmt.Fprintf(&b, "\n\tchain %s {\n\t\ttype %s hook %s priority %s; policy accept;\n", c.Name, c.Type, c.Hook, c.Priority)
		for _, rule := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s\n", rule.text(t.Family))
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

func (p Priority) String() string {
	switch p {
	case Mangle:
		return "mangle"
	case DstNAT:
		return "dstnat"
	case FilterPriority:
		return "filter"
	case SrcNAT:
		return "srcnat"
	}
	return fmt.Sprint(int32(p))
}

func protocolName(number uint8) string {
	switch number {
	case ICMP:
		return "icmp"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case ICMPv6:
		return "ipv6-icmp"
	}
	return fmt.Sprint(number)
}

func (r Rule) text(f Family) string {
	words := make([]string, 0, len(r.Matches)+1)
	for _, m := range r.Matches {
		words = append(words, matchText(m, f))
	}
	return strings.Join(append(words, statementText(r.Statement, f)), " ")
}

func not(not bool) string {
	if not {
		return "!= "
	}
	return ""
}

func matchText(m Match, f Family) string {
	switch m := m.(type) {
	case InInterface:
		return fmt.Sprintf("iifname %s%q", not(m.Not), m.Name)
	case OutInterface:
		return fmt.Sprintf("oifname %s%q", not(m.Not), m.Name)
	case ToElsewhere:
		return "fib daddr type != local"
	case RouteElsewhere:
		return fmt.Sprintf("fib daddr oifname != %q", m.Interface)
	case Protocol:
		return "meta l4proto " + protocolName(m.Number)
	case DestinationPort:
		return fmt.Sprintf("%s dport %d", protocolName(m.Protocol), m.Port)
	case TCPFlags:
		op := "=="
		if m.Not {
			op = "!="
		}
		return fmt.Sprintf("tcp flags & (%s) %s %s", flagsText(m.Mask), op, flagsText(m.Value))
	case ConnState:
		return "ct state " + m.States.String()
	case Translated:
		return "ct status dnat"
	case Direction:
		if m.Reply {
			return "ct direction reply"
		}
		return "ct direction original"
	case Source:
		return fmt.Sprintf("%s saddr %s%s", f, not(m.Not), m.Addr)
	case DestinationOutside:
		return fmt.Sprintf("%s daddr != %s", f, m.Prefix)
	}
	panic(fmt.Sprintf("no text for match %T", m))
}

func statementText(s Statement, f Family) string {
	switch s := s.(type) {
	case Accept:
		return "accept"
	case Drop:
		return "drop"
	case Reject:
		return "reject with " + answerText(s.With, f)
	case SetMark:
		return fmt.Sprintf("meta mark set 0x%08x", s.Mark)
	case ClampMSS:
		return "tcp option maxseg size set rt mtu"
	case ToTarget:
		return fmt.Sprintf("dnat %s to meta l4proto . th dport map @%s", f, MapName)
	case ToAddress:
		return "dnat to " + s.Addr.String()
	case FromAddress:
		return "snat to " + s.Addr.String()
	}
	panic(fmt.Sprintf("no text for statement %T", s))
}

func answerText(a Answer, f Family) string {
	if a == TCPReset {
		return "tcp reset"
	}
	// What is called "host" in IPv4 is "addr" in IPv6.
	words := map[Family][2]string{IPv4: {"icmp", "host"}, IPv6: {"icmpv6", "addr"}}[f]
	if a == PortUnreachable {
		return words[0] + " port-unreachable"
	}
	return words[0] + " " + words[1] + "-unreachable"
}

func flagsText(flags uint8) string {
	var names []string
	for _, f := range []struct {
		bit  uint8
		name string
	}{{FIN, "fin"}, {SYN, "syn"}, {RST, "rst"}, {ACK, "ack"}} {
		if flags&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, " | ")
}

func (s ConnStates) String() string {
	var names []string
	for _, state := range []struct {
		bit  ConnStates
		name string
	}{{Invalid, "invalid"}, {Established, "established"}, {Related, "related"}, {New, "new"}} {
		if s&state.bit != 0 {
			names = append(names, state.name)
		}
	}
	return strings.Join(names, ",")
}
