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
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// ErrNotFound is returned for a node that the tailnet does not have.
var ErrNotFound = errors.New("no such node in the tailnet")

// AddAuthKey makes a key valid and returns it; an empty Key is made up.
func (s *Server) AddAuthKey(k AuthKey) AuthKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.Key == "" {
		k.Key = "tskey-auth-k" + rand.Text()[:10] + "CNTRL-" + rand.Text()
	}
	k.Tags = slices.Clone(k.Tags)
	s.authKeys[k.Key] = &k
	return k
}

// RevokeAuthKey makes a key invalid. Nodes that it registered stay.
func (s *Server) RevokeAuthKey(value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.authKeys, value)
}

// AuthKeys returns the keys that were added and not revoked, used ones
// included.
func (s *Server) AuthKeys() []AuthKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]AuthKey, 0, len(s.authKeys))
	for _, k := range s.authKeys {
		out = append(out, *k)
	}
	return out
}

// Nodes returns the tailnet's nodes by ID.
func (s *Server) Nodes() []Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Node, 0, len(s.nodes))
	for _, n := range s.sorted() {
		out = append(out, s.snapshot(n))
	}
	return out
}

// Node returns one node.
func (s *Server) Node(id tailcfg.NodeID) (Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[id]
	if n == nil {
		return Node{}, ErrNotFound
	}
	return s.snapshot(n), nil
}

// Wait returns the first node that the condition holds for, as soon as there is
// one, or the context's error.
func (s *Server) Wait(ctx context.Context, condition func(Node) bool) (Node, error) {
	for {
		s.mu.Lock()
		changes := s.changes
		s.mu.Unlock()
		for _, n := range s.Nodes() {
			if condition(n) {
				return n, nil
			}
		}
		select {
		case <-ctx.Done():
			return Node{}, fmt.Errorf("waiting for a node: %w", context.Cause(ctx))
		case <-changes:
		}
	}
}

// edit changes a node and tells everybody.
func (s *Server) edit(id tailcfg.NodeID, change func(*node) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[id]
	if n == nil {
		return ErrNotFound
	}
	if err := change(n); err != nil {
		return err
	}
	s.changed()
	return nil
}

// Delete removes a node. Its client is told that its key has expired, and needs
// an auth key to come back, as another node.
func (s *Server) Delete(id tailcfg.NodeID) error {
	return s.edit(id, func(n *node) error {
		s.forget(n, time.Now())
		return nil
	})
}

func (s *Server) forget(n *node, now time.Time) {
	n.expiry = now.Add(-time.Minute).UTC().Truncate(time.Second)
	s.deleted[n.key] = s.wire(n, nil, now)
	delete(s.nodes, n.id)
}

// Replace deletes one node and gives its name and its approved routes to
// another, in one change of the netmap.
func (s *Server) Replace(old, by tailcfg.NodeID) error {
	return s.edit(old, func(o *node) error {
		n := s.nodes[by]
		if n == nil {
			return ErrNotFound
		}
		s.forget(o, time.Now())
		n.label, n.renamed, n.approved = o.label, true, o.approved
		return nil
	})
}

// SetKeyExpiry lets a node's key expire at that time; zero for never. A time in
// the past expires it now, and an expired node whose key is renewed comes back
// by itself.
func (s *Server) SetKeyExpiry(id tailcfg.NodeID, at time.Time) error {
	return s.edit(id, func(n *node) error {
		n.expiry = at.UTC()
		if wait := time.Until(at); !at.IsZero() && wait > 0 {
			time.AfterFunc(wait, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.changed()
			})
		}
		return nil
	})
}

// Rename gives a node another first label. It fails where another node has it.
func (s *Server) Rename(id tailcfg.NodeID, label string) error {
	return s.edit(id, func(n *node) error {
		if s.labelTaken(label, id) {
			return fmt.Errorf("another node is called %s", label)
		}
		n.label, n.renamed = label, true
		return nil
	})
}

// Readdress gives a node other addresses, which were never used, and tells it.
func (s *Server) Readdress(id tailcfg.NodeID) error {
	return s.edit(id, func(n *node) error {
		n.addrs = s.newAddresses()
		return nil
	})
}

// SetTags replaces a node's tags.
func (s *Server) SetTags(id tailcfg.NodeID, tags []string) error {
	return s.edit(id, func(n *node) error {
		n.tags = slices.Clone(tags)
		return nil
	})
}

// Approve sets the routes that a node may serve. It serves those of them that
// it advertises.
func (s *Server) Approve(id tailcfg.NodeID, routes []netip.Prefix) error {
	return s.edit(id, func(n *node) error {
		n.approved = slices.Clone(routes)
		return nil
	})
}

// SetRecords replaces the tailnet's extra DNS records, such as a Service's.
func (s *Server) SetRecords(records []tailcfg.DNSRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = slices.Clone(records)
	s.changed()
}

// Disconnect cuts the connections of a node. It reconnects by itself.
func (s *Server) Disconnect(id tailcfg.NodeID) error {
	s.mu.Lock()
	n := s.nodes[id]
	s.mu.Unlock()
	if n == nil {
		return ErrNotFound
	}
	s.cut(func(machine key.MachinePublic) bool { return machine == n.machine })
	return nil
}

// SetAway cuts every connection and refuses new ones until it is called with
// false.
func (s *Server) SetAway(away bool) {
	s.mu.Lock()
	s.away = away
	s.mu.Unlock()
	if away {
		s.DisconnectAll()
	}
}

// DisconnectAll cuts every connection. Nodes reconnect by themselves.
func (s *Server) DisconnectAll() {
	s.cut(func(key.MachinePublic) bool { return true })
}

func (s *Server) cut(chosen func(key.MachinePublic) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn, machine := range s.conns {
		if chosen(machine) {
			// Closing waits for a write that may be stuck, which must not hold
			// up the others.
			go conn.Close() //nolint:errcheck // It is gone either way.
		}
	}
}
