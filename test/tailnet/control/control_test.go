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
	"net/netip"
	"slices"
	"testing"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func request(auth string, k key.NodePublic) *tailcfg.RegisterRequest {
	req := &tailcfg.RegisterRequest{Version: 1, NodeKey: k, Hostinfo: &tailcfg.Hostinfo{Hostname: "Web 1"}}
	if auth != "" {
		req.Auth = &tailcfg.RegisterResponseAuth{AuthKey: auth}
	}
	return req
}

func TestRegister(t *testing.T) {
	s := New(Options{Domain: "tail.test", URL: "http://control"})
	s.AddAuthKey(AuthKey{Key: "once", Tags: []string{"tag:a"}})
	s.AddAuthKey(AuthKey{Key: "many", Reusable: true})
	s.AddAuthKey(AuthKey{Key: "old", Reusable: true, Expires: now})
	s.AddAuthKey(AuthKey{Key: "brief", Reusable: true, Ephemeral: true})
	s.AddAuthKey(AuthKey{Key: "revoked", Reusable: true})
	s.RevokeAuthKey("revoked")
	m1, m2, m3 := key.NewMachine().Public(), key.NewMachine().Public(), key.NewMachine().Public()
	k1, k2, k3 := key.NewNode().Public(), key.NewNode().Public(), key.NewNode().Public()
	again := key.NewNode().Public()
	logOut := request("", k3)
	logOut.Expiry = time.Unix(123, 0)

	steps := []struct {
		name    string
		before  func()
		req     *tailcfg.RegisterRequest
		machine key.MachinePublic
		// want is "in", "page", "expired" or an error's text.
		want  string
		names []string
	}{
		{"no key", nil, request("", k1), m1, "page", nil},
		{"unknown key", nil, request("other", k1), m1, "invalid key: unable to validate API key", nil},
		{"revoked key", nil, request("revoked", k1), m1, "invalid key: unable to validate API key", nil},
		{"expired key", nil, request("old", k1), m1, "invalid key: API key has expired", nil},
		{"a single-use key", nil, request("once", k1), m1, "in", []string{"web-1"}},
		{"which is used up", nil, request("once", k2), m2, "invalid key: API key was already used", []string{"web-1"}},
		{"back without a key", nil, request("", k1), m1, "in", []string{"web-1"}},
		{"another's node key", nil, request("many", k1), m2, "node key belongs to another machine", []string{"web-1"}},
		{"a second of that name", nil, request("many", k2), m2, "in", []string{"web-1", "web-1-1"}},
		{"expired node", func() { s.byKey(k1).expiry = now }, request("many", k1), m1, "expired", []string{"web-1", "web-1-1"}},
		{"logs in again", nil, request("many", again), m1, "in", []string{"web-1", "web-1-1"}},
		{"deleted node", func() { s.forget(s.byKey(k2), now) }, request("", k2), m2, "page", []string{"web-1"}},
		{"comes back as another", nil, request("many", k2), m2, "in", []string{"web-1", "web-1-1"}},
		{"ephemeral", nil, request("brief", k3), m3, "in", []string{"web-1", "web-1-1", "web-1-2"}},
		{"which logs out", nil, logOut, m3, "expired", []string{"web-1", "web-1-1"}},
	}
	for _, step := range steps {
		if step.before != nil {
			step.before()
		}
		resp := s.register(step.req, step.machine, now)
		got := resp.Error
		switch {
		case resp.AuthURL != "":
			got = "page"
		case resp.NodeKeyExpired:
			got = "expired"
		case resp.MachineAuthorized:
			got = "in"
		}
		if got != step.want {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
		var names []string
		for _, n := range s.sorted() {
			names = append(names, n.label)
		}
		if !slices.Equal(names, step.names) {
			t.Errorf("%s: the nodes are %q, want %q", step.name, names, step.names)
		}
	}
	if n := s.byKey(again); n.id != 1 || n.expired(now) {
		t.Errorf("a machine that logged in again has another place: %+v", n)
	}
	if n := s.byKey(k2); n.id != 3 {
		t.Errorf("a deleted node came back as node %d", n.id)
	}
}

// add makes a node that advertises a route.
func add(s *Server, hostname string, route netip.Prefix) *node {
	n := s.newNode(&tailcfg.Hostinfo{Hostname: hostname, RoutableIPs: []netip.Prefix{route}}, key.NewMachine().Public())
	n.key = key.NewNode().Public()
	n.sessions = 1
	return n
}

func TestRoutesHaveOneServer(t *testing.T) {
	s := New(Options{Domain: "tail.test"})
	route, other := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16")
	a, b := add(s, "a", route), add(s, "b", route)
	steps := []struct {
		name   string
		before func()
		want   *node
	}{
		{"none approved", func() {}, nil},
		{"another approved", func() { a.approved = []netip.Prefix{other} }, nil},
		{"the second approved", func() { b.approved = []netip.Prefix{route} }, b},
		{"both approved", func() { a.approved = []netip.Prefix{route} }, a},
		{"the first offline", func() { a.sessions = 0 }, b},
		{"both offline", func() { b.sessions = 0 }, a},
		{"the first expired", func() { a.expiry = now }, b},
	}
	for _, step := range steps {
		step.before()
		got := s.routes(now)
		want := map[tailcfg.NodeID][]netip.Prefix{}
		if step.want != nil {
			want[step.want.id] = []netip.Prefix{route}
		}
		if len(got) != len(want) || step.want != nil && !slices.Equal(got[step.want.id], want[step.want.id]) {
			t.Errorf("%s: got %v, want %v", step.name, got, want)
		}
	}
}

func TestStreamsTellWhatChanged(t *testing.T) {
	s := New(Options{Domain: "tail.test"})
	route := netip.MustParsePrefix("10.0.0.0/8")
	self, b := add(s, "self", route), add(s, "b", route)
	var sent told
	next := func() *tailcfg.MapResponse {
		t.Helper()
		resp, err := sent.next(s.view(self.key, now))
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	if resp := next(); resp.Node == nil || len(resp.Peers) != 1 || resp.DNSConfig == nil {
		t.Errorf("the first message is %+v", resp)
	}
	if resp := next(); resp != nil {
		t.Errorf("without a change: %+v", resp)
	}
	c := add(s, "c", route)
	if resp := next(); resp.Node != nil || len(resp.PeersChanged) != 1 || resp.PeersChanged[0].ID != c.id {
		t.Errorf("a new peer: %+v", resp)
	}
	b.addrs = s.newAddresses()
	if resp := next(); len(resp.PeersChanged) != 1 || resp.PeersChanged[0].Addresses[0] != b.addrs[0] {
		t.Errorf("another address: %+v", resp)
	}
	s.forget(b, now)
	if resp := next(); len(resp.PeersChanged) != 0 || !slices.Equal(resp.PeersRemoved, []tailcfg.NodeID{b.id}) {
		t.Errorf("a removed peer: %+v", resp)
	}
	s.forget(self, now)
	if resp := next(); !resp.Node.Expired || !slices.Equal(resp.PeersRemoved, []tailcfg.NodeID{c.id}) {
		t.Errorf("the own removal: %+v", resp)
	}
	if v := s.view(key.NewNode().Public(), now); v != nil {
		t.Errorf("an unknown node is told %+v", v)
	}
}
