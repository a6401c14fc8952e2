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

package tailnet

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"tailscale.com/ipn"
	"tailscale.com/tailcfg"

	"github.com/tailnet-egress/egress-operator/internal/proxy/resolve"
)

// loginWarning is where tailscaled says why a login failed
// (tailscale.com/health, LoginStateWarnable).
const loginWarning = "login-state"

// settleTime is how long a new device may stay without a way to reach it before
// it is used all the same.
const settleTime = 5 * time.Second

// settleBatch is how many such devices are asked for at once: messages wait
// meanwhile, and a tailnet may show thousands of devices at one time.
const settleBatch = 64

// member is a device of the tailnet.
type member struct {
	resolve.Peer
	// expires is when its key does, zero for never.
	expires time.Time
	// reachable is whether it has told where it can be reached.
	reachable bool
	// settled is from when it is used though it is not reachable. A device that
	// joins is in the netmap before anybody can reach it, and a packet sent to it in
	// that moment begins a WireGuard handshake that is lost and made again only
	// after five seconds.
	settled time.Time
}

func (m member) usable(now time.Time) bool { return m.reachable || !m.settled.After(now) }

// view is what the messages of a bus add up to.
type view struct {
	state   ipn.State
	login   string // why the last login failed
	fatal   string // tailscaled's last error message
	prefs   Prefs
	device  Device
	peers   map[tailcfg.NodeID]member
	records []resolve.Record
	// mapped is whether there ever was a netmap.
	mapped bool
}

// apply adds one message and returns whether anything changed that matters here,
// and whether extra DNS records have to be read again: the bus does not carry
// their changes.
//
// The messages of tailscaled 1.102 (ipnlocal, setControlClientStatusLocked and
// UpdateNetmapDelta): the first has a whole netmap. After that, SelfChange comes
// with a whole new netmap, and then PeersChanged is all peers there are;
// otherwise PeersChanged and PeersRemoved are differences.
func (v *view) apply(n ipn.Notify, now time.Time) (changed, rereadRecords bool) {
	if n.State != nil && v.state != *n.State {
		v.state, changed = *n.State, true
		v.fatal = ""
	}
	if n.ErrMessage != nil && v.fatal != *n.ErrMessage {
		v.fatal, changed = *n.ErrMessage, true
	}
	if n.Health != nil {
		if login := n.Health.Warnings[loginWarning].Text; v.login != login {
			v.login, changed = login, true
		}
	}
	if n.Prefs != nil && n.Prefs.Valid() {
		prefs := Prefs{AcceptRoutes: n.Prefs.RouteAll(), Hostname: n.Prefs.Hostname()}
		changed = changed || v.prefs != prefs
		v.prefs = prefs
	}
	switch {
	case n.NetMap != nil: //nolint:staticcheck // The only place of the first netmap's DNS records.
		peers := map[tailcfg.NodeID]member{}
		for _, p := range n.NetMap.Peers { //nolint:staticcheck // As above.
			peers[p.ID()] = memberOf(p)
		}
		changed = v.replace(peers, now) || changed
		changed = v.self(n.NetMap.SelfNode) || changed               //nolint:staticcheck // As above.
		changed = v.setRecords(n.NetMap.DNS.ExtraRecords) || changed //nolint:staticcheck // As above.
	case n.SelfChange != nil:
		peers := map[tailcfg.NodeID]member{}
		for _, p := range n.PeersChanged {
			peers[p.ID] = memberOf(p.View())
		}
		changed = v.replace(peers, now) || changed
		changed = v.self(n.SelfChange.View()) || changed
		rereadRecords = true
	default:
		changed = v.differ(n.PeersChanged, n.PeersRemoved, now) || changed
	}
	return changed, rereadRecords
}

// replace takes a whole netmap.
func (v *view) replace(peers map[tailcfg.NodeID]member, now time.Time) bool {
	if v.mapped {
		for id, m := range peers {
			peers[id] = v.settle(id, m, now)
		}
	}
	same := v.mapped && maps.EqualFunc(v.peers, peers, member.equal)
	v.peers, v.mapped = peers, true
	return !same
}

// settle gives a device that is new the time to become reachable.
func (v *view) settle(id tailcfg.NodeID, m member, now time.Time) member {
	m.settled = now.Add(settleTime)
	if old, found := v.peers[id]; found {
		m.settled = old.settled
	}
	return m
}

func (v *view) differ(changed []*tailcfg.Node, removed []tailcfg.NodeID, now time.Time) bool {
	differs := false
	if v.peers == nil {
		v.peers = map[tailcfg.NodeID]member{}
	}
	for _, id := range removed {
		if _, found := v.peers[id]; found {
			delete(v.peers, id)
			differs = true
		}
	}
	for _, node := range changed {
		m := v.settle(node.ID, memberOf(node.View()), now)
		if old, found := v.peers[node.ID]; !found || !old.equal(m) {
			v.peers[node.ID] = m
			differs = true
		}
	}
	return differs
}

// settling are devices that are not used yet, others each time where there are
// many.
func (v *view) settling(now time.Time) []tailcfg.NodeID {
	var ids []tailcfg.NodeID
	for id, m := range v.peers {
		if !m.usable(now) {
			if ids = append(ids, id); len(ids) == settleBatch {
				break
			}
		}
	}
	return ids
}

func (v *view) self(node tailcfg.NodeView) bool {
	if !node.Valid() {
		return false
	}
	d := Device{ID: string(node.StableID()), FQDN: resolve.Canonical(node.Name()), IPs: addresses(node)}
	same := v.device.Equal(d)
	v.device = d
	return !same
}

func (v *view) setRecords(all []tailcfg.DNSRecord) bool {
	var records []resolve.Record
	for _, r := range all {
		addr, err := netip.ParseAddr(r.Value)
		// Records of other types are for other uses.
		if err != nil || r.Type != "" && r.Type != "A" && r.Type != "AAAA" {
			continue
		}
		records = append(records, resolve.Record{Name: resolve.Canonical(r.Name), Addr: addr.Unmap()})
	}
	same := slices.Equal(v.records, records)
	v.records = records
	return !same
}

// netmap at a time; nil before the first.
func (v *view) netmap(now time.Time) *resolve.Netmap {
	if !v.mapped {
		return nil
	}
	n := &resolve.Netmap{Own: v.device.IPs, Records: v.records, Peers: make([]resolve.Peer, 0, len(v.peers))}
	for _, m := range v.peers {
		if !m.usable(now) {
			continue
		}
		p := m.Peer
		p.Expired = p.Expired || !m.expires.IsZero() && !m.expires.After(now)
		n.Peers = append(n.Peers, p)
	}
	slices.SortFunc(n.Peers, func(a, b resolve.Peer) int { return cmp.Compare(a.ID, b.ID) })
	return n
}

// next is the first time after now when a peer's key expires or a peer settles;
// zero for never. Peers that came with a difference are not followed by
// tailscaled.
func (v *view) next(now time.Time) time.Time {
	var next time.Time
	for _, m := range v.peers {
		for _, at := range []time.Time{m.expires, m.settled} {
			if at.After(now) && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next
}

func (m member) equal(other member) bool {
	return m.Equal(other.Peer) && m.expires.Equal(other.expires) && m.reachable == other.reachable
}

func memberOf(node tailcfg.NodeView) member {
	p := resolve.Peer{
		ID: string(node.StableID()), Name: resolve.Canonical(node.Name()), Addrs: addresses(node),
		Expired: node.Expired(), Created: node.Created(),
	}
	for _, prefix := range node.AllowedIPs().All() {
		if prefix.Bits() == 0 || prefix.IsSingleIP() && slices.Contains(p.Addrs, prefix.Addr()) {
			continue
		}
		p.Routes = append(p.Routes, prefix)
	}
	return member{Peer: p, expires: node.KeyExpiry(), reachable: node.HomeDERP() != 0 || node.Endpoints().Len() > 0}
}

// addresses are IPv4 first.
func addresses(node tailcfg.NodeView) []netip.Addr {
	var out []netip.Addr
	for _, prefix := range node.Addresses().All() {
		if prefix.IsSingleIP() {
			out = append(out, prefix.Addr())
		}
	}
	slices.SortStableFunc(out, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
	return out
}
