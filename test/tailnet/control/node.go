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

package control

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"tailscale.com/net/tsaddr"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
	"tailscale.com/util/dnsname"
)

// onlineGrace is how long a node counts as online after its connection ended.
const onlineGrace = 5 * time.Second

// node is what the server knows of a node; netmap.go turns it into what others
// are told.
type node struct {
	id       tailcfg.NodeID
	stableID tailcfg.StableNodeID
	label    string // first label of its name
	// hostname is what the node called itself when label was derived from it.
	hostname  string
	renamed   bool // label is an admin's choice
	addrs     []netip.Prefix
	key       key.NodePublic
	machine   key.MachinePublic
	disco     key.DiscoPublic
	endpoints []netip.AddrPort
	homeDERP  int
	hostinfo  tailcfg.HostinfoView
	version   tailcfg.CapabilityVersion
	created   time.Time
	expiry    time.Time // of its key; zero for never
	tags      []string
	approved  []netip.Prefix
	authKey   string
	ephemeral bool
	sessions  int // open netmap streams
	streams   int // those opened so far
	lastSeen  time.Time
}

func (n *node) online(now time.Time) bool {
	return n.sessions > 0 || now.Sub(n.lastSeen) < onlineGrace
}

func (n *node) expired(now time.Time) bool { return !n.expiry.IsZero() && !now.Before(n.expiry) }

func (n *node) advertised() []netip.Prefix {
	if !n.hostinfo.Valid() {
		return nil
	}
	return n.hostinfo.RoutableIPs().AsSlice()
}

// Node is a snapshot of a node.
type Node struct {
	ID       tailcfg.NodeID
	StableID tailcfg.StableNodeID
	// FQDN has no trailing dot.
	FQDN string
	// Hostname is what the node calls itself.
	Hostname  string
	Addresses []netip.Addr
	Key       key.NodePublic
	Tags      []string
	// Online says that the node receives the netmap, or did until just now.
	Online bool
	// Reachable says that peers were told its disco key and home relay.
	Reachable bool
	// Endpoints are where peers may reach it directly.
	Endpoints []netip.AddrPort
	// Streams counts the netmap streams that it opened so far.
	Streams int
	// KeyExpiry is zero for a key that does not expire.
	KeyExpiry            time.Time
	Advertised, Approved []netip.Prefix
	// AuthKey is the one it registered with.
	AuthKey   string
	Ephemeral bool
}

func (s *Server) snapshot(n *node) Node {
	out := Node{
		ID: n.id, StableID: n.stableID, FQDN: n.label + "." + s.opts.Domain,
		Key: n.key, Tags: slices.Clone(n.tags),
		Online:     n.online(time.Now()),
		Reachable:  !n.disco.IsZero() && n.homeDERP != 0,
		Endpoints:  slices.Clone(n.endpoints),
		Streams:    n.streams,
		KeyExpiry:  n.expiry,
		Advertised: n.advertised(), Approved: slices.Clone(n.approved),
		AuthKey: n.authKey, Ephemeral: n.ephemeral,
	}
	if n.hostinfo.Valid() {
		out.Hostname = n.hostinfo.Hostname()
	}
	for _, addr := range n.addrs {
		out.Addresses = append(out.Addresses, addr.Addr())
	}
	return out
}

// sorted returns the nodes by ID; s.mu is held.
func (s *Server) sorted() []*node {
	out := make([]*node, 0, len(s.nodes))
	for _, n := range s.nodes {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b *node) int { return cmp.Compare(a.id, b.id) })
	return out
}

func (s *Server) byKey(k key.NodePublic) *node {
	for _, n := range s.nodes {
		if n.key == k {
			return n
		}
	}
	return nil
}

func (s *Server) byMachine(k key.MachinePublic) *node {
	for _, n := range s.nodes {
		if n.machine == k {
			return n
		}
	}
	return nil
}

// newNode makes an entry with an ID, addresses and a name that no other has.
func (s *Server) newNode(hostinfo *tailcfg.Hostinfo, machine key.MachinePublic) *node {
	s.lastID++
	n := &node{
		id: s.lastID, stableID: tailcfg.StableNodeID(fmt.Sprintf("n%05dCNTRL", s.lastID)),
		machine: machine, created: time.Now().UTC().Truncate(time.Second),
		addrs: s.newAddresses(),
	}
	s.nodes[n.id] = n
	s.setHostinfo(n, hostinfo)
	return n
}

// newAddresses returns an IPv4 and an IPv6 address that were never used.
func (s *Server) newAddresses() []netip.Prefix {
	s.lastAddr++
	v4 := netip.AddrFrom4([4]byte{100, 64, byte(1 + s.lastAddr/250), byte(1 + s.lastAddr%250)})
	v6 := tsaddr.Tailscale4To6(v4)
	return []netip.Prefix{netip.PrefixFrom(v4, 32), netip.PrefixFrom(v6, 128)}
}

// setHostinfo takes what a node says of itself, its name included unless an
// admin chose another.
func (s *Server) setHostinfo(n *node, hostinfo *tailcfg.Hostinfo) {
	if hostinfo == nil {
		hostinfo = &tailcfg.Hostinfo{}
	}
	n.hostinfo = hostinfo.View()
	if hostinfo.NetInfo != nil && hostinfo.NetInfo.PreferredDERP != 0 {
		n.homeDERP = hostinfo.NetInfo.PreferredDERP
	}
	if n.label == "" || !n.renamed && hostinfo.Hostname != n.hostname {
		n.hostname = hostinfo.Hostname
		n.label = s.freeLabel(hostinfo.Hostname, n.id)
	}
}

// freeLabel returns the DNS label made of a hostname, with a number where
// another node has it.
func (s *Server) freeLabel(hostname string, self tailcfg.NodeID) string {
	base := cmp.Or(dnsname.SanitizeHostname(hostname), "node")
	label := base
	for i := 1; s.labelTaken(label, self); i++ {
		label = fmt.Sprintf("%s-%d", base, i)
	}
	return label
}

func (s *Server) labelTaken(label string, self tailcfg.NodeID) bool {
	for _, n := range s.nodes {
		if n.id != self && strings.EqualFold(n.label, label) {
			return true
		}
	}
	return false
}

// Expired says that the node's key is no longer valid.
func (n Node) Expired() bool { return !n.KeyExpiry.IsZero() && !time.Now().Before(n.KeyExpiry) }
