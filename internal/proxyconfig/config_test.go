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

package proxyconfig

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// example is not in canonical order.
func example() Config {
	return Config{
		Generation: 7, AcceptRoutes: true, Hostname: "egress",
		Targets: []Target{
			{ID: "web/site", Destination: Destination{IP: netip.MustParseAddr("fd7a:115c:a1e0::9")}, Listeners: []Listener{
				{Protocol: UDP, Port: 53, TargetPort: 5353}, {Protocol: TCP, Port: 10002, TargetPort: 80}, {Protocol: TCP, Port: 53, TargetPort: 53},
			}},
			{ID: "app/db", Destination: Destination{FQDN: "db.tail1234.ts.net"}, Listeners: []Listener{{Protocol: TCP, Port: 10001, TargetPort: 5432}}},
		},
	}
}

func exampleAck() Ack {
	return Ack{
		PodUID: "0b0e", PodIPs: []netip.Addr{netip.MustParseAddr("10.244.0.5")}, ConfigGeneration: 7, Connected: true,
		TailnetIPs: []netip.Addr{netip.MustParseAddr("100.64.0.1")}, Draining: true,
		Targets: []TargetAck{
			{ID: "web/site", Revision: "r2", Reason: TargetNotFound, Message: "There is no such device"},
			{ID: "app/db", Revision: "r1", Addresses: []netip.Addr{netip.MustParseAddr("100.64.0.9")}},
		},
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSuffix(string(want), "\n"), string(got)); diff != "" {
		t.Errorf("%s (-want +got), update with -update:\n%s", path, diff)
	}
}

func TestTheWireFormatIsStable(t *testing.T) {
	config, err := example().Encode()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "config.json", config)
	allPorts, err := Config{Generation: 1, Targets: []Target{{ID: "app/db", AllPorts: true, Destination: Destination{FQDN: "db.tail1234.ts.net"}}}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "config-all-ports.json", allPorts)
	ack, err := exampleAck().Encode()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "ack.json", ack)
	empty, err := Ack{PodUID: "0b0e"}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "ack-empty.json", empty)
}

func TestOrderDoesNotMatter(t *testing.T) {
	a, err := example().Encode()
	if err != nil {
		t.Fatal(err)
	}
	other := example()
	other.Targets[0], other.Targets[1] = other.Targets[1], other.Targets[0]
	listeners := other.Targets[1].Listeners
	listeners[0], listeners[2] = listeners[2], listeners[0]
	b, err := other.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("one content, two encodings:\n%s\n%s", a, b)
	}
	if diff := cmp.Diff(example(), func() Config { c := example(); _, _ = c.Encode(); return c }(), sameAddr); diff != "" {
		t.Errorf("Encode changed what it encoded:\n%s", diff)
	}
}

func TestRoundTrip(t *testing.T) {
	data, err := example().Encode()
	if err != nil {
		t.Fatal(err)
	}
	c, bad, err := Decode(data)
	if err != nil || len(bad) > 0 {
		t.Fatal(bad, err)
	}
	again, err := c.Encode()
	if err != nil || !bytes.Equal(data, again) {
		t.Errorf("encoded, decoded and encoded: %v\n%s\n%s", err, data, again)
	}
	ack, err := exampleAck().Encode()
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := DecodeAck(ack)
	if err != nil {
		t.Fatal(err)
	}
	if got, found := decoded.Target("web/site"); !found || got.Reason != TargetNotFound {
		t.Errorf("Target(web/site) = %+v, %t", got, found)
	}
	if _, found := decoded.Target("web"); found {
		t.Error("Target(web) found something")
	}
}

func TestRevisionNamesTheContent(t *testing.T) {
	base := example().Targets[0].Canonical()
	if again := base.Canonical(); again.Revision != base.Revision {
		t.Errorf("the revision depends on the revision: %s, %s", base.Revision, again.Revision)
	}
	changes := map[string]func(*Target){
		"destination": func(t *Target) { t.Destination.IP = netip.MustParseAddr("100.64.0.9") },
		"target port": func(t *Target) { t.Listeners[0].TargetPort++ },
		"listener":    func(t *Target) { t.Listeners = t.Listeners[1:] },
		"all ports":   func(t *Target) { t.AllPorts = true },
	}
	for what, change := range changes {
		other := example().Targets[0]
		change(&other)
		if other.Canonical().Revision == base.Revision {
			t.Errorf("another %s, the same revision", what)
		}
	}
}

func TestSameContent(t *testing.T) {
	a, b := example(), example()
	b.Generation++
	if !a.SameContent(b) {
		t.Error("the generation counts as content")
	}
	b.Hostname = "other"
	if a.SameContent(b) {
		t.Error("the hostname does not count as content")
	}
}

func TestDecodeRefusesTheWhole(t *testing.T) {
	cases := map[string]struct{ data, want string }{
		"nothing":           {"", "unexpected end of JSON input"},
		"no JSON":           {"version: 1", "invalid character"},
		"no version":        {`{"generation":1,"targets":[]}`, "version 0 is not understood, want 1"},
		"a later version":   {`{"version":2}`, "version 2 is not understood, want 1"},
		"a broken address":  {`{"version":1,"targets":[{"id":"a/b","destination":{"ip":"100.64.0.300"}}]}`, "100.64.0.300"},
		"a port above all":  {`{"version":1,"targets":[{"id":"a/b","listeners":[{"protocol":"TCP","port":65536}]}]}`, "65536"},
		"too much":          {`{"version":1,"hostname":"` + strings.Repeat("x", MaxBytes) + `"}`, "exceed the limit of 1000000"},
		"a list of targets": {`[]`, "cannot unmarshal array"},
	}
	for what, c := range cases {
		if _, _, err := Decode([]byte(c.data)); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "config: ") {
			t.Errorf("%s: error %v, want one with %q", what, err, c.want)
		}
	}
	if _, err := DecodeAck([]byte(`{"version":9}`)); err == nil || err.Error() != "ack: version 9 is not understood, want 1" {
		t.Errorf("an Ack of another version: %v", err)
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	c, bad, err := Decode([]byte(`{"version":1,"generation":3,"later":{"x":1},"targets":[
		{"id":"a/b","revision":"r","new":true,"destination":{"fqdn":"db.example.com"},"listeners":[{"protocol":"TCP","port":1,"targetPort":2,"x":3}]}]}`))
	if err != nil || len(bad) > 0 || c.Generation != 3 || len(c.Targets) != 1 {
		t.Errorf("%+v, %v, %v", c, bad, err)
	}
}

func TestABadTargetAffectsNoOther(t *testing.T) {
	const good = `{"id":"a/good","revision":"g","destination":{"fqdn":"db.example.com"},"listeners":[{"protocol":"TCP","port":1000,"targetPort":80}]}`
	const listener = `"listeners":[{"protocol":"TCP","port":2000,"targetPort":80}]`
	cases := map[string]struct{ target, want string }{
		"no id":            {`{"revision":"r","destination":{"fqdn":"x.y"},` + listener + `}`, "id is empty"},
		"no destination":   {`{"id":"b/bad","revision":"r","destination":{},` + listener + `}`, "exactly one of fqdn and ip"},
		"two destinations": {`{"id":"b/bad","revision":"r","destination":{"fqdn":"x.y","ip":"100.64.0.1"},` + listener + `}`, "exactly one of fqdn and ip"},
		"loopback":         {`{"id":"b/bad","revision":"r","destination":{"ip":"127.0.0.1"},` + listener + `}`, "127.0.0.1 is not a unicast address"},
		"link-local":       {`{"id":"b/bad","revision":"r","destination":{"ip":"fe80::1"},` + listener + `}`, "fe80::1 is not a unicast address"},
		"multicast":        {`{"id":"b/bad","revision":"r","destination":{"ip":"224.0.0.1"},` + listener + `}`, "224.0.0.1 is not a unicast address"},
		"unspecified":      {`{"id":"b/bad","revision":"r","destination":{"ip":"0.0.0.0"},` + listener + `}`, "0.0.0.0 is not a unicast address"},
		"a zone":           {`{"id":"b/bad","revision":"r","destination":{"ip":"fd00::1%eth0"},` + listener + `}`, "has a zone"},
		"no listeners":     {`{"id":"b/bad","revision":"r","destination":{"fqdn":"x.y"}}`, "no listeners"},
		"all and some":     {`{"id":"b/bad","revision":"r","allPorts":true,"destination":{"fqdn":"x.y"},` + listener + `}`, "exclude each other"},
		"all beside one":   {`{"id":"b/bad","revision":"r","allPorts":true,"destination":{"fqdn":"x.y"}}`, "needs a proxy of its own"},
		"SCTP":             {`{"id":"b/bad","revision":"r","destination":{"fqdn":"x.y"},"listeners":[{"protocol":"SCTP","port":1,"targetPort":1}]}`, `protocol "SCTP" is not TCP or UDP`},
		"port 0":           {`{"id":"b/bad","revision":"r","destination":{"fqdn":"x.y"},"listeners":[{"protocol":"TCP","port":0,"targetPort":1}]}`, "a port is 1-65535"},
		"target port 0":    {`{"id":"b/bad","revision":"r","destination":{"fqdn":"x.y"},"listeners":[{"protocol":"TCP","port":1}]}`, "a port is 1-65535"},
		"a port twice":     {`{"id":"b/bad","revision":"r","destination":{"fqdn":"x.y"},"listeners":[{"protocol":"TCP","port":1,"targetPort":1},{"protocol":"TCP","port":1,"targetPort":2}]}`, "listed twice"},
		"another's port":   {`{"id":"b/bad","revision":"r","destination":{"fqdn":"x.y"},"listeners":[{"protocol":"TCP","port":1000,"targetPort":1}]}`, `already belongs to "a/good"`},
		"another's id":     {`{"id":"a/good","revision":"r","destination":{"fqdn":"x.y"},` + listener + `}`, "an earlier target has the same id"},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			config, bad, err := Decode([]byte(`{"version":1,"targets":[` + good + `,` + c.target + `]}`))
			if err != nil || len(config.Targets) != 1 || config.Targets[0].Revision != "g" {
				t.Fatalf("the good target: %+v, %v", config.Targets, err)
			}
			if len(bad) != 1 || bad[0].Revision != "r" || !strings.Contains(bad[0].Error(), c.want) {
				t.Errorf("the bad one: %v, want %q", bad, c.want)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	all := func(p Protocol, from, to int) []Listener {
		var out []Listener
		for port := from; port <= to; port++ {
			out = append(out, Listener{Protocol: p, Port: uint16(port), TargetPort: uint16(port)})
		}
		return out
	}
	big := Config{Targets: []Target{{ID: "a/b", Destination: Destination{FQDN: "x.y"}, Listeners: all(TCP, 1, 40_000)}}}
	if _, err := big.Encode(); err == nil || !strings.Contains(err.Error(), "exceed the limit") {
		t.Errorf("40,000 listeners: %v", err)
	}
	var many Config
	for i := range 4_000 {
		many.Targets = append(many.Targets, Target{ID: fmt.Sprintf("ns/target-%d", i), Destination: Destination{FQDN: fmt.Sprintf("host-%d.tail1234.ts.net", i)},
			Listeners: all(TCP, 10_000+i, 10_000+i)})
	}
	if data, err := many.Encode(); err != nil {
		t.Errorf("4,000 targets: %v", err)
	} else if c, bad, err := Decode(data); err != nil || len(bad) > 0 || len(c.Targets) != 4_000 {
		t.Errorf("4,000 targets decode to %d, %v, %v", len(c.Targets), bad, err)
	}
}

// FuzzDecode: what was decoded and is within the limits survives another round.
func FuzzDecode(f *testing.F) {
	seeds, err := filepath.Glob("testdata/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range seeds {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"version":1,"targets":[{"id":"a/b","destination":{"ip":"::ffff:1.2.3.4"},"listeners":[{"protocol":"TCP","port":1,"targetPort":1}]}]}`))
	f.Add([]byte(`{"version":1,"targets":[{"id":"\ud800","allPorts":true,"destination":{"fqdn":"\u0000"}}]}`))
	f.Add([]byte(`{"version":1,"generation":-1,"targets":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := Decode(data)
		if err != nil {
			return
		}
		first, err := c.Encode()
		if err != nil {
			return
		}
		again, bad, err := Decode(first)
		if err != nil || len(bad) > 0 {
			t.Fatalf("%s does not decode: %v, %v", first, bad, err)
		}
		second, err := again.Encode()
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("two encodings, %v:\n%s\n%s", err, first, second)
		}
	})
}
