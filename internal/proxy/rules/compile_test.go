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

package rules

import (
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string) Input {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".in.json"))
	if err != nil {
		t.Fatal(err)
	}
	var in Input
	if err := json.Unmarshal(data, &in); err != nil {
		t.Fatal(err)
	}
	return in
}

// Every testdata/*.in.json compiles to the text beside it.
func TestCompileGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.in.json")
	if err != nil || len(inputs) == 0 {
		t.Fatal(inputs, err)
	}
	for _, path := range inputs {
		name := strings.TrimSuffix(filepath.Base(path), ".in.json")
		t.Run(name, func(t *testing.T) {
			in := golden(t, name)
			got := Compile(in).String()
			slices.Reverse(in.Targets)
			if reversed := Compile(in).String(); reversed != got {
				t.Errorf("the order of targets matters: %s", cmp.Diff(got, reversed))
			}
			path := filepath.Join("testdata", name+".nft")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-want +got (-update accepts):\n%s", diff)
			}
		})
	}
}

func TestRulesDoNotGrowWithTargets(t *testing.T) {
	in := golden(t, "listeners")
	some := Compile(in)
	in.Targets = nil
	none := Compile(in)
	for _, pair := range [][2]Table{{some.IPv4, none.IPv4}, {some.IPv6, none.IPv6}} {
		if !slices.EqualFunc(pair[0].Chains, pair[1].Chains, Chain.Equal) {
			t.Errorf("chains with and without targets differ: %s", cmp.Diff(pair[0].String(), pair[1].String()))
		}
	}
}

func TestCompileKeepsItsInput(t *testing.T) {
	in := golden(t, "conflicts")
	Compile(in)
	if diff := cmp.Diff(golden(t, "conflicts").Targets, in.Targets, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestStale(t *testing.T) {
	own := netip.MustParseAddr("100.64.0.1")
	to := netip.MustParseAddrPort
	db := Flow{Protocol: TCP, Port: 5432, To: to("100.64.0.9:15432"), From: own}
	with := func(change func(*Flow)) Flow {
		f := db
		change(&f)
		return f
	}
	tests := map[string]struct {
		rules string
		flow  Flow
		want  bool
	}{
		"as mapped":                {"listeners", db, false},
		"IPv6 as mapped":           {"listeners", Flow{TCP, 5432, to("[fd7a:115c:a1e0::9]:15432"), netip.MustParseAddr("fd7a:115c:a1e0::1")}, false},
		"target moved":             {"listeners", with(func(f *Flow) { f.To = to("100.64.0.8:15432") }), true},
		"target port changed":      {"listeners", with(func(f *Flow) { f.To = to("100.64.0.9:5432") }), true},
		"listener gone":            {"listeners", with(func(f *Flow) { f.Port = 5433 }), true},
		"other protocol":           {"listeners", with(func(f *Flow) { f.Protocol = UDP }), true},
		"target unresolved":        {"listeners", Flow{TCP, 443, to("100.64.0.8:443"), own}, true},
		"own address changed":      {"listeners", with(func(f *Flow) { f.From = netip.MustParseAddr("100.64.0.2") }), true},
		"family given up":          {"ipv4-only", Flow{TCP, 5432, to("[fd7a:115c:a1e0::9]:5432"), netip.MustParseAddr("fd7a:115c:a1e0::1")}, true},
		"reset":                    {"reset", db, true},
		"logged out":               {"not-connected", db, true},
		"all ports":                {"all-ports", with(func(f *Flow) { f.Port, f.To = 7, to("100.64.0.9:7") }), false},
		"all ports, ICMP":          {"all-ports", Flow{ICMP, 0, to("100.64.0.9:0"), own}, false},
		"all ports, target moved":  {"all-ports", with(func(f *Flow) { f.To = to("100.64.0.8:5432") }), true},
		"all ports, unresolved":    {"all-ports-unresolved", db, true},
		"all ports, was listeners": {"all-ports", db, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Compile(golden(t, test.rules)).Stale(test.flow); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
