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

// Package resolve finds the addresses of targets in a netmap. It is pure.
package resolve

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

// Netmap is what a proxy sees of its tailnet.
type Netmap struct {
	// Own is the proxy's own addresses on the tailnet, IPv4 first.
	Own   []netip.Addr
	Peers []Peer
	// Records are the tailnet's extra DNS records, a Tailscale Service's among
	// them.
	Records []Record
}

// Peer is another device of the tailnet.
type Peer struct {
	// ID is the device's stable ID.
	ID string
	// Name is its MagicDNS name in lower case and without a trailing dot.
	Name string
	// Addrs are its own addresses on the tailnet.
	Addrs []netip.Addr
	// Routes are the others that the control server lets it serve: subnets, and
	// single addresses of Tailscale Services.
	Routes []netip.Prefix
	// Expired is whether its key is no longer valid.
	Expired bool
	// Created is when it joined the tailnet.
	Created time.Time
}

// Equal is whether two peers are the same to a proxy.
func (p Peer) Equal(other Peer) bool {
	return p.ID == other.ID && p.Name == other.Name && p.Expired == other.Expired && p.Created.Equal(other.Created) &&
		slices.Equal(p.Addrs, other.Addrs) && slices.Equal(p.Routes, other.Routes)
}

// Record is a DNS record with an address; Name is in lower case and without a
// trailing dot.
type Record struct {
	Name string
	Addr netip.Addr
}

// Families is the IP families that the Pod can forward.
type Families struct{ IPv4, IPv6 bool }

func (f Families) has(a netip.Addr) bool { return a.Is4() && f.IPv4 || a.Is6() && f.IPv6 }

// Resolved is what became of one target.
type Resolved struct {
	ID       string
	Revision string
	// Addrs has at most one address per family, IPv4 first. Where it is empty,
	// Reason and Message say why.
	Addrs []netip.Addr
	// ViaRoute is whether an address is not a device's own, so that the proxy has
	// to accept routes.
	ViaRoute bool
	Reason   proxyconfig.Reason
	// Message is one sentence.
	Message string
}

// devices hold every device and Service of a tailnet, except that via stands for
// IPv4 subnets behind subnet routers (4via6, tailscale.com/net/tsaddr).
var (
	devices4 = netip.MustParsePrefix("100.64.0.0/10")
	devices6 = netip.MustParsePrefix("fd7a:115c:a1e0::/48")
	via      = netip.MustParsePrefix("fd7a:115c:a1e0:b1a::/64")
)

func isDevice(a netip.Addr) bool {
	return devices4.Contains(a) || devices6.Contains(a) && !via.Contains(a)
}

// Resolve finds the addresses of every target of c, in its order.
//
// A name is that of a device, else that of extra DNS records; an address is a
// device's own, or one that a device serves by a route other than a default
// route. Devices whose key has expired are not used. Where several would do, the
// choice is the same each time: of devices with one name the one that was created
// last, then the one with the highest ID; of records the lowest address of each
// family.
func Resolve(c proxyconfig.Config, n Netmap, families Families) []Resolved {
	ix := newIndex(n)
	own := Families{IPv4: slices.ContainsFunc(n.Own, netip.Addr.Is4), IPv6: slices.ContainsFunc(n.Own, netip.Addr.Is6)}
	out := make([]Resolved, 0, len(c.Targets))
	for _, t := range c.Targets {
		r := ix.find(t.Destination)
		r = r.within(t.Destination, families, own)
		r.ID, r.Revision = t.ID, t.Revision
		out = append(out, r)
	}
	return out
}

func refused(reason proxyconfig.Reason, format string, args ...any) Resolved {
	return Resolved{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// within keeps the addresses of families that the Pod can forward and in which the
// proxy has an address of its own to forward from.
func (r Resolved) within(d proxyconfig.Destination, families, own Families) Resolved {
	var usable []netip.Addr
	var why []string
	family := ""
	for _, a := range r.Addrs {
		family = "IPv4"
		if a.Is6() {
			family = "IPv6"
		}
		switch {
		case !families.has(a):
			why = append(why, "this Pod does not forward "+family)
		case !own.has(a):
			why = append(why, fmt.Sprintf("the proxy has no %s address on the tailnet", family))
		default:
			usable = append(usable, a)
		}
	}
	switch {
	case len(why) == 0:
		return r
	case len(usable) > 0:
		r.Addrs = usable
		return r
	case d.IP.IsValid():
		return refused(proxyconfig.AddressFamilyUnsupported, "%s is an %s address, and %s", d, family, why[0])
	case len(why) == 1:
		return refused(proxyconfig.AddressFamilyUnsupported, "%s has %s addresses only, and %s", d, family, why[0])
	}
	return refused(proxyconfig.AddressFamilyUnsupported, "%s cannot be used: %s", d, strings.Join(why, ", and "))
}

// index answers for one target in a time that does not grow with the tailnet.
type index struct {
	byName  map[string]*Peer
	byAddr  map[netip.Addr]*Peer
	records map[string][]netip.Addr
	routes  map[netip.Prefix]*Peer
	bits4   []int // the lengths of prefixes in routes, longest first
	bits6   []int
}

func newIndex(n Netmap) *index {
	ix := &index{
		byName: make(map[string]*Peer, len(n.Peers)), byAddr: make(map[netip.Addr]*Peer, 2*len(n.Peers)),
		records: map[string][]netip.Addr{}, routes: map[netip.Prefix]*Peer{},
	}
	peers := make([]*Peer, len(n.Peers))
	for i := range n.Peers {
		peers[i] = &n.Peers[i]
	}
	// The best comes last and so replaces the others.
	slices.SortStableFunc(peers, worse)
	for _, p := range peers {
		ix.byName[p.Name] = p
		for _, a := range p.Addrs {
			ix.byAddr[a] = p
		}
		for _, route := range p.Routes {
			ix.routes[route.Masked()] = p
		}
	}
	for route := range ix.routes {
		bits := &ix.bits4
		if route.Addr().Is6() {
			bits = &ix.bits6
		}
		if route.Bits() > 0 && !slices.Contains(*bits, route.Bits()) {
			*bits = append(*bits, route.Bits())
		}
	}
	for _, bits := range [][]int{ix.bits4, ix.bits6} {
		slices.SortFunc(bits, func(a, b int) int { return b - a })
	}
	for _, r := range n.Records {
		ix.records[r.Name] = append(ix.records[r.Name], r.Addr)
	}
	return ix
}

func worse(a, b *Peer) int {
	if a.Expired != b.Expired {
		if a.Expired {
			return -1
		}
		return 1
	}
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
}

func (ix *index) find(d proxyconfig.Destination) Resolved {
	if d.FQDN != "" {
		return ix.name(d.FQDN)
	}
	return ix.address(d.IP)
}

func (ix *index) name(fqdn string) Resolved {
	name := Canonical(fqdn)
	peer, known := ix.byName[name]
	if known && !peer.Expired {
		if addrs := onePerFamily(peer.Addrs); len(addrs) > 0 {
			return Resolved{Addrs: addrs}
		}
		return refused(proxyconfig.NoAddresses, "Device %s has no address on the tailnet", name)
	}
	if addrs := ix.records[name]; len(addrs) > 0 {
		return ix.record(name, addrs)
	}
	if known {
		return refused(proxyconfig.TargetNotFound, "The key of device %s has expired, so it cannot be reached until it is renewed", name)
	}
	return refused(proxyconfig.TargetNotFound, "The tailnet has no device or Service named %s that this proxy may see", name)
}

// record uses those addresses of a name that the tailnet leads to.
func (ix *index) record(name string, addrs []netip.Addr) Resolved {
	sorted := slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)
	var usable []netip.Addr
	var first Resolved
	viaRoute := false
	for _, a := range sorted {
		r := ix.address(a)
		if len(r.Addrs) == 0 {
			if first.Reason == "" {
				first = r
			}
			continue
		}
		usable = append(usable, a)
		viaRoute = viaRoute || r.ViaRoute
	}
	if len(usable) == 0 {
		return refused(first.Reason, "%s has DNS records, but their addresses cannot be used: %s", name, first.Message)
	}
	return Resolved{Addrs: onePerFamily(usable), ViaRoute: viaRoute}
}

func (ix *index) address(ip netip.Addr) Resolved {
	ip = ip.Unmap()
	peer, known := ix.byAddr[ip]
	if known && !peer.Expired {
		return Resolved{Addrs: []netip.Addr{ip}}
	}
	if router, found := ix.route(ip); found {
		if !router.Expired {
			return Resolved{Addrs: []netip.Addr{ip}, ViaRoute: true}
		}
		return refused(proxyconfig.NoRouteToTarget, "The key of device %s, which serves the route to %s, has expired", router.Name, ip)
	}
	switch {
	case known:
		return refused(proxyconfig.TargetNotFound, "The key of device %s with address %s has expired, so it cannot be reached until it is renewed", peer.Name, ip)
	case isDevice(ip):
		return refused(proxyconfig.TargetNotFound, "The tailnet has no device or Service with address %s that this proxy may see", ip)
	}
	return refused(proxyconfig.NoRouteToTarget, "No device of the tailnet serves an approved route to %s", ip)
}

// route is the peer with the longest route to ip.
func (ix *index) route(ip netip.Addr) (*Peer, bool) {
	bits := ix.bits4
	if ip.Is6() {
		bits = ix.bits6
	}
	for _, length := range bits {
		prefix, err := ip.Prefix(length)
		if err != nil {
			continue
		}
		if peer, found := ix.routes[prefix]; found {
			return peer, true
		}
	}
	return nil, false
}

// onePerFamily is the first address of each family, IPv4 first.
func onePerFamily(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, is := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		if i := slices.IndexFunc(addrs, is); i >= 0 {
			out = append(out, addrs[i])
		}
	}
	return out
}

// Canonical is a DNS name in lower case and without a trailing dot.
func Canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
