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
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"tailscale.com/health"
	"tailscale.com/ipn"
	"tailscale.com/tailcfg"
	"tailscale.com/types/netmap"
)

var day = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func node(id int, name string, prefixes ...string) *tailcfg.Node {
	n := &tailcfg.Node{ID: tailcfg.NodeID(id), StableID: tailcfg.StableNodeID(fmt.Sprintf("n%d", id)), Name: name + ".Tail1234.ts.net.", HomeDERP: 900}
	for i, p := range prefixes {
		prefix := netip.MustParsePrefix(p)
		if i < 2 {
			n.Addresses = append(n.Addresses, prefix)
		}
		n.AllowedIPs = append(n.AllowedIPs, prefix)
	}
	return n
}

func with(n *tailcfg.Node, change func(*tailcfg.Node)) *tailcfg.Node {
	change(n)
	return n
}

func initial(peers ...*tailcfg.Node) ipn.Notify {
	nm := &netmap.NetworkMap{SelfNode: node(1, "me", "fd7a:115c:a1e0::1/128", "100.64.0.1/32").View()}
	for _, p := range peers {
		nm.Peers = append(nm.Peers, p.View())
	}
	running := ipn.Running
	return ipn.Notify{State: &running, NetMap: nm} //nolint:staticcheck // As tailscaled sends it.
}

func whole(peers ...*tailcfg.Node) ipn.Notify {
	return ipn.Notify{SelfChange: node(1, "me", "100.64.0.1/32"), PeersChanged: peers}
}

// names of the peers, with what matters.
func show(v *view, now time.Time) string {
	n := v.netmap(now)
	if n == nil {
		return "none"
	}
	var out []string
	for _, p := range n.Peers {
		s := p.ID + ":" + strings.TrimSuffix(p.Name, ".tail1234.ts.net")
		for _, a := range p.Addrs {
			s += " " + a.String()
		}
		for _, r := range p.Routes {
			s += " via " + r.String()
		}
		if p.Expired {
			s += " expired"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestView(t *testing.T) {
	a := func() *tailcfg.Node { return node(2, "a", "fd7a:115c:a1e0::2/128", "100.64.0.2/32") }
	b := func() *tailcfg.Node { return node(3, "b", "100.64.0.3/32") }
	patch := ipn.Notify{PeerChangedPatch: []*tailcfg.PeerChange{{NodeID: 2, DERPRegion: 4}}}
	type step struct {
		n       ipn.Notify
		changed bool
		want    string
	}
	const wantA = "n2:a 100.64.0.2 fd7a:115c:a1e0::2"
	cases := map[string][]step{
		"no netmap yet":                    {{ipn.Notify{}, false, "none"}},
		"a whole netmap at first":          {{initial(a(), b()), true, wantA + ", n3:b 100.64.0.3"}},
		"an empty one is a netmap":         {{initial(), true, ""}},
		"a peer comes":                     {{initial(a()), true, wantA}, {ipn.Notify{PeersChanged: []*tailcfg.Node{b()}}, true, wantA + ", n3:b 100.64.0.3"}},
		"a peer goes":                      {{initial(a(), b()), true, wantA + ", n3:b 100.64.0.3"}, {ipn.Notify{PeersRemoved: []tailcfg.NodeID{2}}, true, "n3:b 100.64.0.3"}},
		"one replaces the other":           {{initial(a()), true, wantA}, {ipn.Notify{PeersRemoved: []tailcfg.NodeID{2}, PeersChanged: []*tailcfg.Node{node(9, "a", "100.64.0.9/32")}}, true, "n9:a 100.64.0.9"}},
		"another address":                  {{initial(b()), true, "n3:b 100.64.0.3"}, {ipn.Notify{PeersChanged: []*tailcfg.Node{node(3, "b", "100.64.0.33/32")}}, true, "n3:b 100.64.0.33"}},
		"the same again":                   {{initial(a()), true, wantA}, {ipn.Notify{PeersChanged: []*tailcfg.Node{a()}}, false, wantA}},
		"what no target could care for":    {{initial(a()), true, wantA}, {patch, false, wantA}, {ipn.Notify{Engine: &ipn.EngineStatus{}}, false, wantA}},
		"after a reconnect peers are gone": {{initial(a(), b()), true, wantA + ", n3:b 100.64.0.3"}, {whole(a()), true, wantA}, {whole(), true, ""}},
		"routes": {{initial(node(2, "a", "100.64.0.2/32", "fd7a:115c:a1e0::2/128", "192.168.7.0/24", "0.0.0.0/0", "::/0", "100.100.0.5/32")), true,
			wantA + " via 192.168.7.0/24 via 100.100.0.5/32"}},
		"expired, says the control server": {{initial(with(b(), func(n *tailcfg.Node) { n.Expired = true })), true, "n3:b 100.64.0.3 expired"}},
		"expired, says the time":           {{initial(with(b(), func(n *tailcfg.Node) { n.KeyExpiry = day })), true, "n3:b 100.64.0.3 expired"}},
		"will expire":                      {{initial(with(b(), func(n *tailcfg.Node) { n.KeyExpiry = day.Add(time.Hour) })), true, "n3:b 100.64.0.3"}},
		"one that joins is not reachable yet": {
			{initial(a()), true, wantA},
			{ipn.Notify{PeersChanged: []*tailcfg.Node{with(b(), func(n *tailcfg.Node) { n.HomeDERP = 0 })}}, true, wantA},
			{ipn.Notify{PeersChanged: []*tailcfg.Node{b()}}, true, wantA + ", n3:b 100.64.0.3"},
		},
		"one that was there before is used": {{initial(with(b(), func(n *tailcfg.Node) { n.HomeDERP = 0 })), true, "n3:b 100.64.0.3"}},
		"one that goes offline stays used": {
			{initial(b()), true, "n3:b 100.64.0.3"},
			{ipn.Notify{PeersChanged: []*tailcfg.Node{with(b(), func(n *tailcfg.Node) { n.HomeDERP = 0 })}}, true, "n3:b 100.64.0.3"},
		},
	}
	for what, steps := range cases {
		t.Run(what, func(t *testing.T) {
			v := &view{}
			for i, s := range steps {
				changed, _ := v.apply(s.n, day)
				if got := show(v, day); changed != s.changed || got != s.want {
					t.Errorf("step %d: changed %t, %q, want %t, %q", i, changed, got, s.changed, s.want)
				}
			}
		})
	}
}

func TestViewOfTheDevice(t *testing.T) {
	v := &view{}
	v.apply(initial(), day)
	s := v.snapshot(day)
	if !s.Running || s.Problem != "" || s.Device.ID != "n1" || s.Device.FQDN != "me.tail1234.ts.net" || fmt.Sprint(s.Device.IPs) != "[100.64.0.1 fd7a:115c:a1e0::1]" {
		t.Errorf("%+v", s)
	}
	prefs := (&ipn.Prefs{RouteAll: true, Hostname: "me"}).View()
	if changed, _ := v.apply(ipn.Notify{Prefs: &prefs}, day); !changed || v.snapshot(day).Prefs != (Prefs{AcceptRoutes: true, Hostname: "me"}) {
		t.Errorf("changed %t, %+v", changed, v.prefs)
	}
	if changed, _ := v.apply(ipn.Notify{Prefs: &prefs}, day); changed {
		t.Error("the same prefs are a change")
	}
	needs := ipn.NeedsLogin
	v.apply(ipn.Notify{State: &needs, Health: &health.State{Warnings: map[health.WarnableCode]health.UnhealthyState{"login-state": {Text: "invalid key"}}}}, day)
	s = v.snapshot(day)
	if s.Running || !s.NeedsLogin || s.Problem != "The device is not logged in and needs a valid auth key: invalid key" || s.Netmap == nil {
		t.Errorf("%+v", s)
	}
}

func TestRecords(t *testing.T) {
	v := &view{}
	n := initial()
	n.NetMap.DNS.ExtraRecords = []tailcfg.DNSRecord{ //nolint:staticcheck // As tailscaled sends it.
		{Name: "Web.Tail1234.ts.net.", Value: "100.100.0.5"}, {Name: "web.tail1234.ts.net", Type: "AAAA", Value: "fd7a:115c:a1e0::5"},
		{Name: "text.example", Type: "TXT", Value: "100.100.0.6"}, {Name: "odd.example", Value: "no address"},
	}
	v.apply(n, day)
	if got := fmt.Sprint(v.netmap(day).Records); got != "[{web.tail1234.ts.net 100.100.0.5} {web.tail1234.ts.net fd7a:115c:a1e0::5}]" {
		t.Error(got)
	}
	if _, reread := v.apply(whole(), day); !reread {
		t.Error("a new netmap does not read the records again")
	}
	if _, reread := v.apply(ipn.Notify{PeersRemoved: []tailcfg.NodeID{7}}, day); reread {
		t.Error("a difference reads the records again")
	}
	if !v.setRecords(nil) || v.setRecords(nil) {
		t.Error("a change of records is not told from none")
	}
}

func TestWhenAViewChangesByItself(t *testing.T) {
	v := &view{}
	if at := v.next(day); !at.IsZero() {
		t.Errorf("an empty view changes at %s", at)
	}
	v.apply(initial(with(node(2, "a", "100.64.0.2/32"), func(n *tailcfg.Node) { n.KeyExpiry = day.Add(time.Hour) })), day)
	if at := v.next(day); !at.Equal(day.Add(time.Hour)) {
		t.Errorf("it changes at %s", at)
	}
	if got := show(v, day.Add(time.Hour)); got != "n2:a 100.64.0.2 expired" {
		t.Errorf("then it is %s", got)
	}
	late := with(node(3, "b", "100.64.0.3/32"), func(n *tailcfg.Node) { n.HomeDERP = 0 })
	v.apply(ipn.Notify{PeersChanged: []*tailcfg.Node{late}}, day)
	if ids := v.settling(day); len(ids) != 1 || ids[0] != 3 {
		t.Errorf("%v settle", ids)
	}
	at := day.Add(settleTime)
	if next := v.next(day); !next.Equal(at) || len(v.settling(at)) != 0 || show(v, at) != "n2:a 100.64.0.2, n3:b 100.64.0.3" {
		t.Errorf("it changes at %s, then it is %s", next, show(v, at))
	}
	var many []*tailcfg.Node
	for i := range 10 * settleBatch {
		many = append(many, with(node(100+i, "c"), func(n *tailcfg.Node) { n.HomeDERP = 0 }))
	}
	v.apply(ipn.Notify{PeersChanged: many}, day)
	asked := map[tailcfg.NodeID]bool{}
	for range 10_000 {
		ids := v.settling(day)
		if len(ids) > settleBatch {
			t.Fatalf("%d devices are asked for at once", len(ids))
		}
		for _, id := range ids {
			asked[id] = true
		}
		if len(asked) == len(many)+1 {
			return
		}
	}
	t.Errorf("only %d devices of %d are ever asked for", len(asked), len(many)+1)
}
