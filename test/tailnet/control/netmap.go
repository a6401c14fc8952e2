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
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/dnstype"
	"tailscale.com/types/key"
)

// view is all that a node is told that can change.
type view struct {
	self  *tailcfg.Node
	peers []*tailcfg.Node // by ID
	dns   *tailcfg.DNSConfig
}

// view returns what the node with that key is to be told, nil for a key that
// was never known or was replaced; s.mu is held.
func (s *Server) view(k key.NodePublic, now time.Time) *view {
	dns := s.dns()
	n := s.byKey(k)
	if n == nil {
		if gone := s.deleted[k]; gone != nil {
			return &view{self: gone, dns: dns}
		}
		return nil
	}
	routes := s.routes(now)
	v := &view{self: s.wire(n, routes[n.id], now), dns: dns}
	if n.expired(now) {
		return v
	}
	for _, p := range s.sorted() {
		if p.id != n.id {
			v.peers = append(v.peers, s.wire(p, routes[p.id], now))
		}
	}
	return v
}

// routes says which node serves which approved routes. One that several
// advertise belongs to the first of them that is online.
func (s *Server) routes(now time.Time) map[tailcfg.NodeID][]netip.Prefix {
	out := map[tailcfg.NodeID][]netip.Prefix{}
	taken := map[netip.Prefix]bool{}
	for _, online := range []bool{true, false} {
		for _, n := range s.sorted() {
			if n.online(now) != online || n.expired(now) {
				continue
			}
			for _, route := range n.advertised() {
				if slices.Contains(n.approved, route) && !taken[route] {
					taken[route] = true
					out[n.id] = append(out[n.id], route)
				}
			}
		}
	}
	return out
}

// wire is the node in the protocol's form.
func (s *Server) wire(n *node, routes []netip.Prefix, now time.Time) *tailcfg.Node {
	online := n.online(now)
	out := &tailcfg.Node{
		ID: n.id, StableID: n.stableID, User: user,
		Name:              n.label + "." + s.opts.Domain + ".",
		Key:               n.key,
		KeyExpiry:         n.expiry,
		Expired:           n.expired(now),
		Machine:           n.machine,
		DiscoKey:          n.disco,
		Addresses:         slices.Clone(n.addrs),
		AllowedIPs:        append(slices.Clone(n.addrs), routes...),
		PrimaryRoutes:     slices.Clone(routes),
		Endpoints:         slices.Clone(n.endpoints),
		HomeDERP:          n.homeDERP,
		Hostinfo:          n.hostinfo,
		Created:           n.created,
		Cap:               n.version,
		Tags:              slices.Clone(n.tags),
		Online:            &online,
		MachineAuthorized: true,
	}
	if !online && !n.lastSeen.IsZero() {
		seen := n.lastSeen.UTC().Truncate(time.Second)
		out.LastSeen = &seen
	}
	return out
}

func (s *Server) dns() *tailcfg.DNSConfig {
	return &tailcfg.DNSConfig{
		Proxied:      true,
		Domains:      []string{s.opts.Domain},
		Routes:       map[string][]*dnstype.Resolver{s.opts.Domain: nil},
		ExtraRecords: slices.Clone(s.records),
	}
}

// told remembers what one stream was sent, to send only what changed.
type told struct {
	started   bool
	self, dns string
	peers     map[tailcfg.NodeID]string
}

// next returns the message that brings the node up to date, nil when it is.
func (t *told) next(v *view) (*tailcfg.MapResponse, error) {
	resp, news := &tailcfg.MapResponse{}, false
	self, err := changedValue(&t.self, v.self)
	if err != nil {
		return nil, err
	}
	if self {
		resp.Node, news = v.self, true
	}
	dns, err := changedValue(&t.dns, v.dns)
	if err != nil {
		return nil, err
	}
	if dns {
		resp.DNSConfig, news = v.dns, true
	}
	peers := make(map[tailcfg.NodeID]string, len(v.peers))
	for _, p := range v.peers {
		before := t.peers[p.ID]
		different, err := changedValue(&before, p)
		if err != nil {
			return nil, err
		}
		if different {
			resp.PeersChanged, news = append(resp.PeersChanged, p), true
		}
		peers[p.ID] = before
	}
	for id := range t.peers {
		if _, still := peers[id]; !still {
			resp.PeersRemoved, news = append(resp.PeersRemoved, id), true
		}
	}
	slices.Sort(resp.PeersRemoved)
	t.peers = peers
	if !t.started {
		// The first message holds the peers as a whole.
		t.started = true
		resp.Peers, resp.PeersChanged = resp.PeersChanged, nil
	}
	if !news {
		return nil, nil
	}
	return resp, nil
}

// changedValue reports whether value differs from what before holds, and puts
// it there.
func changedValue(before *string, value any) (bool, error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return false, err
	}
	if string(raw) == *before {
		return false, nil
	}
	*before = string(raw)
	return true, nil
}
