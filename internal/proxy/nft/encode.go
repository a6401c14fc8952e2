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

package nft

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
)

// Registers, by the numbers that the kernel lists: 1 to 4 are 16 bytes wide, and
// from 8 on the same bytes are numbered by words of 4.
const (
	firstWord  = 1
	secondWord = 9
	fifthWord  = 2
)

const (
	rtnLocal   = 2    // RTN_LOCAL of linux/rtnetlink.h
	statusDNAT = 0x20 // IPS_DST_NAT of nf_conntrack_common.h
	tcpoptMSS  = 2    // TCPOPT_MSS of net/tcp.h
	flagsAt    = 13   // offset of the flags in a TCP header
	dportAt    = 2    // offset of the destination port in a TCP or UDP header
	ifNameSize = unix.IFNAMSIZ
)

var hooks = map[rules.Hook]*nftables.ChainHook{
	rules.Prerouting:  nftables.ChainHookPrerouting,
	rules.InputHook:   nftables.ChainHookInput,
	rules.Forward:     nftables.ChainHookForward,
	rules.Output:      nftables.ChainHookOutput,
	rules.Postrouting: nftables.ChainHookPostrouting,
}

func tableOf(f rules.Family) *nftables.Table {
	family := nftables.TableFamilyIPv4
	if f == rules.IPv6 {
		family = nftables.TableFamilyIPv6
	}
	return &nftables.Table{Name: rules.TableName, Family: family}
}

func chainOf(table *nftables.Table, c rules.Chain) *nftables.Chain {
	policy, priority := nftables.ChainPolicyAccept, nftables.ChainPriority(c.Priority)
	return &nftables.Chain{
		Name:     c.Name,
		Table:    table,
		Type:     nftables.ChainType(c.Type),
		Hooknum:  hooks[c.Hook],
		Priority: &priority,
		Policy:   &policy,
	}
}

func mapOf(table *nftables.Table) *nftables.Set {
	address := nftables.TypeIPAddr
	if table.Family == nftables.TableFamilyIPv6 {
		address = nftables.TypeIP6Addr
	}
	return &nftables.Set{
		Table:         table,
		Name:          rules.MapName,
		IsMap:         true,
		Concatenation: true,
		KeyType:       nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
		DataType:      nftables.MustConcatSetType(address, nftables.TypeInetService),
		Size:          rules.MapSize,
	}
}

// elementOf pads each field to 4 bytes, as the kernel concatenates them.
func elementOf(e rules.Element) nftables.SetElement {
	address := e.To.Addr().AsSlice()
	key, value := make([]byte, 8), make([]byte, len(address)+4)
	key[0] = e.Protocol
	binary.BigEndian.PutUint16(key[4:], e.Port)
	copy(value, address)
	binary.BigEndian.PutUint16(value[len(address):], e.To.Port())
	return nftables.SetElement{Key: key, Val: value}
}

// elementFrom is the inverse of elementOf; false for what elementOf cannot make.
func elementFrom(key, value []byte) (rules.Element, bool) {
	if len(key) != 8 || len(value) < 4 {
		return rules.Element{}, false
	}
	addr, ok := netip.AddrFromSlice(value[:len(value)-4])
	if !ok {
		return rules.Element{}, false
	}
	return rules.Element{
		Key: rules.Key{Protocol: key[0], Port: binary.BigEndian.Uint16(key[4:])},
		To:  netip.AddrPortFrom(addr, binary.BigEndian.Uint16(value[len(value)-4:])),
	}, true
}

func expressions(r rules.Rule, f rules.Family) []expr.Any {
	var all []expr.Any
	for _, m := range r.Matches {
		all = append(all, matchExprs(m, f)...)
	}
	return append(all, statementExprs(r.Statement, f)...)
}

func matchExprs(m rules.Match, f rules.Family) []expr.Any {
	switch m := m.(type) {
	case rules.InInterface:
		return compare(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstWord}, m.Not, ifName(m.Name))
	case rules.OutInterface:
		return compare(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: firstWord}, m.Not, ifName(m.Name))
	case rules.ToElsewhere:
		return compare(&expr.Fib{Register: firstWord, ResultADDRTYPE: true, FlagDADDR: true}, true,
			binaryutil.NativeEndian.PutUint32(rtnLocal))
	case rules.RouteElsewhere:
		return compare(&expr.Fib{Register: firstWord, ResultOIFNAME: true, FlagDADDR: true}, true, ifName(m.Interface))
	case rules.Protocol:
		return protocolIs(m.Number)
	case rules.DestinationPort:
		return append(protocolIs(m.Protocol),
			compare(transport(dportAt, 2, firstWord), false, binaryutil.BigEndian.PutUint16(m.Port))...)
	case rules.TCPFlags:
		return masked(transport(flagsAt, 1, firstWord), []byte{m.Mask}, m.Not, []byte{m.Value})
	case rules.ConnState:
		return masked(&expr.Ct{Key: expr.CtKeySTATE, Register: firstWord},
			binaryutil.NativeEndian.PutUint32(uint32(m.States)), true, make([]byte, 4))
	case rules.Translated:
		return masked(&expr.Ct{Key: expr.CtKeySTATUS, Register: firstWord},
			binaryutil.NativeEndian.PutUint32(statusDNAT), true, make([]byte, 4))
	case rules.Direction:
		direction := byte(0)
		if m.Reply {
			direction = 1
		}
		return compare(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: firstWord}, false, []byte{direction})
	case rules.Source:
		return compare(address(f, source), m.Not, m.Addr.AsSlice())
	case rules.DestinationOutside:
		addr := m.Prefix.Masked().Addr().AsSlice()
		return masked(address(f, destination), net.CIDRMask(m.Prefix.Bits(), 8*len(addr)), true, addr)
	}
	panic(fmt.Sprintf("no expression for match %T", m))
}

func statementExprs(s rules.Statement, f rules.Family) []expr.Any {
	switch s := s.(type) {
	case rules.Accept:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	case rules.Drop:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	case rules.Reject:
		return []expr.Any{reject(s.With, f)}
	case rules.SetMark:
		return []expr.Any{
			&expr.Immediate{Register: firstWord, Data: binaryutil.NativeEndian.PutUint32(s.Mark)},
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: firstWord},
		}
	case rules.ClampMSS:
		return []expr.Any{
			&expr.Rt{Register: firstWord, Key: expr.RtTCPMSS},
			&expr.Byteorder{SourceRegister: firstWord, DestRegister: firstWord, Op: expr.ByteorderHton, Len: 2, Size: 2},
			&expr.Exthdr{SourceRegister: firstWord, Type: tcpoptMSS, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
		}
	case rules.ToTarget:
		port := uint32(secondWord)
		if f == rules.IPv6 {
			port = fifthWord
		}
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstWord},
			transport(dportAt, 2, secondWord),
			&expr.Lookup{SourceRegister: firstWord, DestRegister: firstWord, IsDestRegSet: true, SetName: rules.MapName},
			&expr.NAT{
				Type: expr.NATTypeDestNAT, Family: natFamily(f),
				RegAddrMin: firstWord, RegAddrMax: firstWord, RegProtoMin: port, RegProtoMax: port,
			},
		}
	case rules.ToAddress:
		return translate(expr.NATTypeDestNAT, s.Addr, f)
	case rules.FromAddress:
		return translate(expr.NATTypeSourceNAT, s.Addr, f)
	}
	panic(fmt.Sprintf("no expression for statement %T", s))
}

func translate(kind expr.NATType, addr netip.Addr, f rules.Family) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: firstWord, Data: addr.AsSlice()},
		&expr.NAT{Type: kind, Family: natFamily(f), RegAddrMin: firstWord, RegAddrMax: firstWord},
	}
}

func natFamily(f rules.Family) uint32 {
	if f == rules.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

func reject(a rules.Answer, f rules.Family) expr.Any {
	if a == rules.TCPReset {
		return &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}
	}
	// Codes of ICMP and ICMPv6, destination unreachable: host or address, port.
	codes := map[rules.Family][2]uint8{rules.IPv4: {1, 3}, rules.IPv6: {3, 4}}[f]
	code := codes[0]
	if a == rules.PortUnreachable {
		code = codes[1]
	}
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}
}

func protocolIs(number uint8) []expr.Any {
	return compare(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstWord}, false, []byte{number})
}

// Places of addresses in a header.
const (
	source      = 0
	destination = 1
)

func address(f rules.Family, nth uint32) *expr.Payload {
	p := &expr.Payload{DestRegister: firstWord, Base: expr.PayloadBaseNetworkHeader, Offset: 12 + 4*nth, Len: 4}
	if f == rules.IPv6 {
		p.Offset, p.Len = 8+16*nth, 16
	}
	return p
}

func transport(offset, length, register uint32) *expr.Payload {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length}
}

func compare(load expr.Any, not bool, value []byte) []expr.Any {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return []expr.Any{load, &expr.Cmp{Op: op, Register: firstWord, Data: value}}
}

func masked(load expr.Any, mask []byte, not bool, value []byte) []expr.Any {
	bits := &expr.Bitwise{
		SourceRegister: firstWord, DestRegister: firstWord,
		Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask)),
	}
	all := compare(load, not, value)
	return []expr.Any{all[0], bits, all[1]}
}

func ifName(name string) []byte {
	padded := make([]byte, ifNameSize)
	copy(padded, name)
	return padded
}
