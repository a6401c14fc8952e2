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

package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

var (
	ip     = netip.MustParseAddr
	prefix = netip.MustParsePrefix
	both   = Families{IPv4: true, IPv6: true}
	only4  = Families{IPv4: true}
	own4   = ip("100.64.0.200")
	own6   = ip("fd7a:115c:a1e0::200")
	day    = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

func peer(id, name string, addrs ...string) Peer {
	p := Peer{ID: id, Name: name, Created: day}
	for _, a := range addrs {
		p.Addrs = append(p.Addrs, ip(a))
	}
	return p
}

func (p Peer) serving(routes ...string) Peer {
	for _, r := range routes {
		p.Routes = append(p.Routes, prefix(r))
	}
	return p
}

func (p Peer) expired() Peer {
	p.Expired = true
	return p
}

func (p Peer) createdAfter(d time.Duration) Peer {
	p.Created = p.Created.Add(d)
	return p
}

func TestResolve(t *testing.T) {
	const name = "db.tail1234.ts.net"
	db := peer("n1", name, "100.64.0.9", "fd7a:115c:a1e0::9")
	cases := map[string]struct {
		peers    []Peer
		records  []Record
		families Families
		own      []netip.Addr // of both families unless given
		fqdn     string
		ip       string
		want     Resolved
	}{
		"a device by name":                    {peers: []Peer{db}, fqdn: name, want: Resolved{Addrs: []netip.Addr{ip("100.64.0.9"), ip("fd7a:115c:a1e0::9")}}},
		"case and the trailing dot":           {peers: []Peer{db}, fqdn: "DB.Tail1234.ts.net.", families: only4, want: Resolved{Addrs: []netip.Addr{ip("100.64.0.9")}}},
		"a self-hosted control server's name": {peers: []Peer{peer("n1", "db.corp.example", "10.9.0.1")}, fqdn: "db.corp.example", want: Resolved{Addrs: []netip.Addr{ip("10.9.0.1")}}},
		"IPv6 listed first":                   {peers: []Peer{peer("n1", name, "fd7a:115c:a1e0::9", "100.64.0.9")}, fqdn: name, want: Resolved{Addrs: []netip.Addr{ip("100.64.0.9"), ip("fd7a:115c:a1e0::9")}}},
		"several addresses of a family":       {peers: []Peer{peer("n1", name, "100.64.0.9", "100.64.0.8")}, fqdn: name, want: Resolved{Addrs: []netip.Addr{ip("100.64.0.9")}}},
		"an unknown name": {peers: []Peer{db}, fqdn: "later.tail1234.ts.net", want: Resolved{Reason: proxyconfig.TargetNotFound,
			Message: "The tailnet has no device or Service named later.tail1234.ts.net that this proxy may see"}},
		"a name that is a prefix": {peers: []Peer{db}, fqdn: "db.tail1234", want: Resolved{Reason: proxyconfig.TargetNotFound,
			Message: "The tailnet has no device or Service named db.tail1234 that this proxy may see"}},
		"an expired device": {peers: []Peer{db.expired()}, fqdn: name, want: Resolved{Reason: proxyconfig.TargetNotFound,
			Message: "The key of device db.tail1234.ts.net has expired, so it cannot be reached until it is renewed"}},
		"of two with one name the newest":      {peers: []Peer{peer("n7", name, "100.64.0.7").createdAfter(time.Hour), db}, fqdn: name, want: Resolved{Addrs: []netip.Addr{ip("100.64.0.7")}}},
		"of two as old the highest ID":         {peers: []Peer{peer("n7", name, "100.64.0.7"), peer("n2", name, "100.64.0.2")}, fqdn: name, want: Resolved{Addrs: []netip.Addr{ip("100.64.0.7")}}},
		"of two the one that has not expired":  {peers: []Peer{db, peer("n7", name, "100.64.0.7").createdAfter(time.Hour).expired()}, fqdn: name, families: only4, want: Resolved{Addrs: []netip.Addr{ip("100.64.0.9")}}},
		"no address":                           {peers: []Peer{peer("n1", name)}, fqdn: name, want: Resolved{Reason: proxyconfig.NoAddresses, Message: "Device db.tail1234.ts.net has no address on the tailnet"}},
		"IPv6 only, in a Pod that forwards it": {peers: []Peer{peer("n1", name, "fd7a:115c:a1e0::9")}, fqdn: name, want: Resolved{Addrs: []netip.Addr{ip("fd7a:115c:a1e0::9")}}},
		"IPv6 only, in one that does not": {peers: []Peer{peer("n1", name, "fd7a:115c:a1e0::9")}, fqdn: name, families: only4, want: Resolved{Reason: proxyconfig.AddressFamilyUnsupported,
			Message: "db.tail1234.ts.net has IPv6 addresses only, and this Pod does not forward IPv6"}},
		"IPv4 only, in an IPv6 Pod": {peers: []Peer{peer("n1", name, "100.64.0.9")}, fqdn: name, families: Families{IPv6: true}, want: Resolved{Reason: proxyconfig.AddressFamilyUnsupported,
			Message: "db.tail1234.ts.net has IPv4 addresses only, and this Pod does not forward IPv4"}},

		"a Service by name": {
			peers:   []Peer{peer("n1", "host.tail1234.ts.net", "100.64.0.1").serving("100.100.0.5/32", "fd7a:115c:a1e0::5:5/128")},
			records: []Record{{"web.tail1234.ts.net", ip("fd7a:115c:a1e0::5:5")}, {"web.tail1234.ts.net", ip("100.100.0.5")}},
			fqdn:    "web.tail1234.ts.net",
			want:    Resolved{Addrs: []netip.Addr{ip("100.100.0.5"), ip("fd7a:115c:a1e0::5:5")}, ViaRoute: true},
		},
		"a record for a device's address": {peers: []Peer{db}, records: []Record{{"alias.example.com", ip("100.64.0.9")}}, fqdn: "alias.example.com", want: Resolved{Addrs: []netip.Addr{ip("100.64.0.9")}}},
		"a record that leads nowhere beside one that does": {peers: []Peer{db}, records: []Record{{"alias.example.com", ip("100.64.0.1")}, {"alias.example.com", ip("100.64.0.9")}},
			fqdn: "alias.example.com", want: Resolved{Addrs: []netip.Addr{ip("100.64.0.9")}}},
		"a record that leads nowhere": {peers: []Peer{db}, records: []Record{{"alias.example.com", ip("192.0.2.1")}}, fqdn: "alias.example.com", want: Resolved{Reason: proxyconfig.NoRouteToTarget,
			Message: "alias.example.com has DNS records, but their addresses cannot be used: No device of the tailnet serves an approved route to 192.0.2.1"}},
		"a device before records":           {peers: []Peer{db}, records: []Record{{name, ip("100.64.0.1")}}, fqdn: name, families: only4, want: Resolved{Addrs: []netip.Addr{ip("100.64.0.9")}}},
		"records before an expired device":  {peers: []Peer{db.expired(), peer("n2", "b.example", "100.64.0.2")}, records: []Record{{name, ip("100.64.0.2")}}, fqdn: name, want: Resolved{Addrs: []netip.Addr{ip("100.64.0.2")}}},
		"a device by address":               {peers: []Peer{db}, ip: "100.64.0.9", want: Resolved{Addrs: []netip.Addr{ip("100.64.0.9")}}},
		"a device by IPv6 address":          {peers: []Peer{db}, ip: "fd7a:115c:a1e0::9", want: Resolved{Addrs: []netip.Addr{ip("fd7a:115c:a1e0::9")}}},
		"an IPv4 address written as IPv6":   {peers: []Peer{db}, ip: "::ffff:100.64.0.9", want: Resolved{Addrs: []netip.Addr{ip("100.64.0.9")}}},
		"a Service by address":              {peers: []Peer{peer("n1", "h.example", "100.64.0.1").serving("100.100.0.5/32")}, ip: "100.100.0.5", want: Resolved{Addrs: []netip.Addr{ip("100.100.0.5")}, ViaRoute: true}},
		"an address behind a subnet router": {peers: []Peer{db.serving("192.168.7.0/24")}, ip: "192.168.7.10", want: Resolved{Addrs: []netip.Addr{ip("192.168.7.10")}, ViaRoute: true}},
		"a 4via6 address":                   {peers: []Peer{db.serving("fd7a:115c:a1e0:b1a:0:7:a00:0/104")}, ip: "fd7a:115c:a1e0:b1a:0:7:a00:1", want: Resolved{Addrs: []netip.Addr{ip("fd7a:115c:a1e0:b1a:0:7:a00:1")}, ViaRoute: true}},
		"a 4via6 address without a route": {peers: []Peer{db}, ip: "fd7a:115c:a1e0:b1a:0:7:a00:1", want: Resolved{Reason: proxyconfig.NoRouteToTarget,
			Message: "No device of the tailnet serves an approved route to fd7a:115c:a1e0:b1a:0:7:a00:1"}},
		"the longest of routes decides": {peers: []Peer{db.serving("10.0.0.0/8"), peer("n2", "r.example", "100.64.0.2").serving("10.1.0.0/16").expired()}, ip: "10.1.0.1", want: Resolved{Reason: proxyconfig.NoRouteToTarget,
			Message: "The key of device r.example, which serves the route to 10.1.0.1, has expired"}},
		"of two routers the one that has not expired": {peers: []Peer{db.serving("10.0.0.0/8"), peer("n2", "r.example", "100.64.0.2").serving("10.0.0.0/8").expired()}, ip: "10.1.0.1", want: Resolved{Addrs: []netip.Addr{ip("10.1.0.1")}, ViaRoute: true}},
		"an exit node serves no target": {peers: []Peer{db.serving("0.0.0.0/0", "::/0")}, ip: "192.0.2.1", want: Resolved{Reason: proxyconfig.NoRouteToTarget,
			Message: "No device of the tailnet serves an approved route to 192.0.2.1"}},
		"an exit node serves no IPv6 target": {peers: []Peer{db.serving("0.0.0.0/0", "::/0")}, ip: "2001:db8::1", want: Resolved{Reason: proxyconfig.NoRouteToTarget,
			Message: "No device of the tailnet serves an approved route to 2001:db8::1"}},
		"an unknown tailnet address": {peers: []Peer{db}, ip: "100.64.0.77", want: Resolved{Reason: proxyconfig.TargetNotFound,
			Message: "The tailnet has no device or Service with address 100.64.0.77 that this proxy may see"}},
		"an unknown IPv6 tailnet address": {peers: []Peer{db}, ip: "fd7a:115c:a1e0::77", want: Resolved{Reason: proxyconfig.TargetNotFound,
			Message: "The tailnet has no device or Service with address fd7a:115c:a1e0::77 that this proxy may see"}},
		"an expired device by address": {peers: []Peer{db.expired()}, ip: "100.64.0.9", want: Resolved{Reason: proxyconfig.TargetNotFound,
			Message: "The key of device db.tail1234.ts.net with address 100.64.0.9 has expired, so it cannot be reached until it is renewed"}},
		"an IPv6 address in a Pod without": {peers: []Peer{db}, ip: "fd7a:115c:a1e0::9", families: only4, want: Resolved{Reason: proxyconfig.AddressFamilyUnsupported,
			Message: "fd7a:115c:a1e0::9 is an IPv6 address, and this Pod does not forward IPv6"}},
		"IPv4 only, for a proxy without": {peers: []Peer{peer("n1", name, "100.64.0.9")}, fqdn: name, own: []netip.Addr{own6}, want: Resolved{Reason: proxyconfig.AddressFamilyUnsupported,
			Message: "db.tail1234.ts.net has IPv4 addresses only, and the proxy has no IPv4 address on the tailnet"}},
		"an IPv4 address for a proxy without": {peers: []Peer{db}, ip: "100.64.0.9", own: []netip.Addr{own6}, want: Resolved{Reason: proxyconfig.AddressFamilyUnsupported,
			Message: "100.64.0.9 is an IPv4 address, and the proxy has no IPv4 address on the tailnet"}},
		"the family that the proxy has": {peers: []Peer{db}, fqdn: name, own: []netip.Addr{own6}, want: Resolved{Addrs: []netip.Addr{ip("fd7a:115c:a1e0::9")}}},
		"no family in common": {peers: []Peer{db}, fqdn: name, own: []netip.Addr{own6}, families: only4, want: Resolved{Reason: proxyconfig.AddressFamilyUnsupported,
			Message: "db.tail1234.ts.net cannot be used: the proxy has no IPv4 address on the tailnet, and this Pod does not forward IPv6"}},
		"an empty tailnet": {fqdn: name, want: Resolved{Reason: proxyconfig.TargetNotFound,
			Message: "The tailnet has no device or Service named db.tail1234.ts.net that this proxy may see"}},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			d := proxyconfig.Destination{FQDN: c.fqdn}
			if c.ip != "" {
				d.IP = ip(c.ip)
			}
			if c.families == (Families{}) {
				c.families = both
			}
			if c.own == nil {
				c.own = []netip.Addr{own4, own6}
			}
			config := proxyconfig.Config{Targets: []proxyconfig.Target{{ID: "app/db", Revision: "r1", Destination: d}}}
			c.want.ID, c.want.Revision = "app/db", "r1"
			for _, order := range []string{"as listed", "reversed"} {
				got := Resolve(config, Netmap{Own: c.own, Peers: c.peers, Records: c.records}, c.families)
				if diff := cmp.Diff([]Resolved{c.want}, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
					t.Errorf("%s (-want +got):\n%s", order, diff)
				}
				slices.Reverse(c.peers)
				slices.Reverse(c.records)
			}
		})
	}
}

func TestOneTargetDoesNotAffectAnother(t *testing.T) {
	config := proxyconfig.Config{Targets: []proxyconfig.Target{
		{ID: "a/good", Destination: proxyconfig.Destination{FQDN: "db.example.com"}},
		{ID: "a/later", Destination: proxyconfig.Destination{FQDN: "later.example.com"}},
		{ID: "b/good", Destination: proxyconfig.Destination{IP: ip("100.64.0.9")}},
	}}
	got := Resolve(config, Netmap{Own: []netip.Addr{own4}, Peers: []Peer{peer("n1", "db.example.com", "100.64.0.9")}}, both)
	for i, want := range []proxyconfig.Reason{"", proxyconfig.TargetNotFound, ""} {
		if got[i].ID != config.Targets[i].ID || got[i].Reason != want || (want == "") != (len(got[i].Addrs) == 1) {
			t.Errorf("target %d: %+v, want reason %q", i, got[i], want)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	n := Netmap{Own: []netip.Addr{own4, own6}}
	var config proxyconfig.Config
	for i := range 10_000 {
		name := fmt.Sprintf("d%d.example.com", i)
		n.Peers = append(n.Peers, peer(name, name, netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}).String()))
		config.Targets = append(config.Targets, proxyconfig.Target{ID: name, Destination: proxyconfig.Destination{FQDN: name}})
	}
	for b.Loop() {
		Resolve(config, n, both)
	}
}
