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

package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tailnet-egress/egress-operator/internal/proxy/conntrack"
	"github.com/tailnet-egress/egress-operator/internal/proxy/forwarding"
	"github.com/tailnet-egress/egress-operator/internal/proxy/nft"
	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

func TestManyElementsAreReadBack(t *testing.T) {
	for _, n := range []int{1_000, 10_000, 50_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			host, p := space(t, "nftmany")
			in := many(n)
			apply(t, p, in, true)
			verify(t, p, false)
			// Another Programmer has nothing to go by but the kernel.
			fresh := programmer(t, host)
			apply(t, fresh, in, false)
			in.Targets[n/2].Addr4 = other4
			in.Targets = slices.Delete(in.Targets, 7, 8)
			apply(t, fresh, in, true)
			apply(t, programmer(t, host), in, false)
			// The first one finds out that the kernel is not as it left it.
			verify(t, p, true)
			apply(t, programmer(t, host), many(n), false)
		})
	}
}

func TestVerifyRepairs(t *testing.T) {
	damages := map[string]string{
		"table deleted":       "delete table ip egress",
		"both tables deleted": "delete table ip egress; delete table ip6 egress",
		"everything flushed":  "flush ruleset",
		"rules flushed":       "flush chain ip egress forward",
		"rule inserted":       "insert rule ip egress input accept",
		"rule appended":       "add rule ip egress prerouting counter",
		"chain added":         "add chain ip egress foreign",
		"set added":           "add set ip egress foreign { type ipv4_addr; }",
		"counter added":       "add counter ip egress foreign",
		"policy changed":      "add chain ip egress forward { policy drop; }",
		"table asleep":        "add table ip egress { flags dormant; }",
		"element deleted":     "delete element ip egress targets { tcp . 5432 }",
		"element changed":     "delete element ip egress targets { tcp . 5432 }; add element ip egress targets { tcp . 5432 : 100.64.0.66 . 1 }",
		"element added":       "add element ip egress targets { udp . 1 : 100.64.0.66 . 1 }",
		"elements flushed":    "flush map ip6 egress targets",
	}
	in := examples()["listeners"]
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			host, p := space(t, "nftrepair")
			nftCommand(t, host, "", "add table ip foreign; add chain ip foreign c")
			apply(t, p, in, true)
			good := nftCommand(t, host, "", "list ruleset")
			nftCommand(t, host, "", damage)
			if damaged := nftCommand(t, host, "", "list ruleset"); damaged == good {
				t.Fatal("the damage changed nothing")
			}
			verify(t, p, true)
			verify(t, p, false)
			repaired := nftCommand(t, host, "", "list ruleset")
			if strings.Contains(damage, "flush ruleset") {
				repaired = "table ip foreign {\n\tchain c {\n\t}\n}\n" + repaired
			}
			if sortedTables(repaired) != sortedTables(good) {
				t.Errorf("after the repair:\n%s\nbefore the damage:\n%s", repaired, good)
			}
		})
	}
}

// sortedTables undoes that a table made anew is listed last.
func sortedTables(ruleset string) string {
	tables := strings.SplitAfter(ruleset, "\n}\n")
	slices.Sort(tables)
	return strings.Join(tables, "")
}

// A change after damage that Verify has not seen yet still ends in what is
// wanted.
func TestApplyAfterDamage(t *testing.T) {
	for _, damage := range []string{
		"delete table ip egress",
		"delete element ip egress targets { tcp . 5432 }",
		"add element ip egress targets { tcp . 6000 : 100.64.0.66 . 1 }",
	} {
		t.Run(damage, func(t *testing.T) {
			host, p := space(t, "nftdamage")
			apply(t, p, examples()["listeners"], true)
			nftCommand(t, host, "", damage)
			in := input(rules.Target{
				ID: "app/db", Addr4: other4,
				Listeners: []proxyconfig.Listener{listener(proxyconfig.TCP, 5432, 1), listener(proxyconfig.TCP, 6000, 2)},
			})
			apply(t, p, in, true)
			apply(t, programmer(t, host), in, false)
			verify(t, p, false)
		})
	}
}

func TestForeignTablesAreNeverTouched(t *testing.T) {
	host, p := space(t, "nftforeign")
	nftCommand(t, host, `
table ip kube-proxy {
	map targets {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { tcp . 5432 : 10.0.0.1 . 1 }
	}
	chain forward {
		type filter hook forward priority 0; policy accept;
		counter accept
	}
}
table inet egress {
	chain input {
		type filter hook input priority 0; policy accept;
	}
}
`, "-f", "-")
	list := func() string {
		return nftCommand(t, host, "", "list table ip kube-proxy") + nftCommand(t, host, "", "list table inet egress")
	}
	before := list()
	for _, name := range []string{"none", "listeners", "all ports", "reset", "none"} {
		if _, err := p.Apply(rules.Compile(examples()[name])); err != nil {
			t.Fatal(err)
		}
	}
	nftCommand(t, host, "", "delete table ip egress")
	verify(t, p, true)
	if after := list(); after != before {
		t.Errorf("foreign tables changed to\n%s\nfrom\n%s", after, before)
	}
}

// 2,000 changes leave nothing behind.
func TestChangesLeaveNothing(t *testing.T) {
	host, p := space(t, "nftchurn")
	in := examples()["listeners"]
	apply(t, p, in, true)
	want := nftCommand(t, host, "", "list ruleset")
	for i := range 1_000 {
		more := in
		more.Targets = append(slices.Clone(in.Targets), rules.Target{
			ID: "app/more", Addr4: netip.AddrFrom4([4]byte{100, 100, byte(i >> 8), byte(i)}),
			Listeners: []proxyconfig.Listener{listener(proxyconfig.TCP, uint16(10_000+i), 1)},
		})
		apply(t, p, more, true)
		apply(t, p, in, true)
	}
	if got := nftCommand(t, host, "", "list ruleset"); got != want {
		t.Errorf("after the changes:\n%s\nbefore:\n%s", got, want)
	}
	verify(t, p, false)
}

const unprivileged = "EGRESS_TEST_UNPRIVILEGED"

// TestMain lets TestNetAdminIsEnough start this binary without privileges.
func TestMain(m *testing.M) {
	if os.Getenv(unprivileged) == "" {
		os.Exit(m.Run())
	}
	if err := errors.Join(programUnprivileged(), forwardUnprivileged()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func programUnprivileged() error {
	p, err := nft.Open()
	if err != nil {
		return err
	}
	for _, in := range []rules.Input{many(50_000), examples()["listeners"]} {
		if changed, err := p.Apply(rules.Compile(in)); err != nil || !changed {
			return fmt.Errorf("apply: %t, %w", changed, err)
		}
	}
	flows, err := conntrack.Open()
	if err != nil {
		return err
	}
	_, err = flows.Delete(func(rules.Flow) bool { return true })
	return err
}

func forwardUnprivileged() error {
	changed, err := forwarding.EnableIPv4()
	if err == nil && len(changed) != 2 {
		err = fmt.Errorf("forwarding changed for %v, want two interfaces", changed)
	}
	return err
}

// As in a Pod, where everything but NET_ADMIN is dropped.
func TestNetAdminIsEnough(t *testing.T) {
	host, _ := space(t, "nftcap")
	check(t, host.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: rules.Tunnel})
	}))
	command := host.Command(t.Context(), "setpriv", "--reuid=65532", "--regid=65532", "--clear-groups", "--no-new-privs",
		"--inh-caps=-all,+net_admin", "--ambient-caps=-all,+net_admin", "--bounding-set=-all,+net_admin", testBinary(t))
	command.Env = append(os.Environ(), unprivileged+"=1")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	apply(t, programmer(t, host), examples()["listeners"], false)
}

// testBinary is this test binary where another user can run it.
func testBinary(t *testing.T) string {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "egress-nft")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := dir + "/test"
	if err := os.WriteFile(path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func BenchmarkProgram1k(b *testing.B)  { benchmarkProgram(b, 1_000) }
func BenchmarkProgram10k(b *testing.B) { benchmarkProgram(b, 10_000) }
func BenchmarkProgram50k(b *testing.B) { benchmarkProgram(b, 50_000) }

// BenchmarkFirstProgram is no mapping at all in a new namespace, where the kernel
// has to set up the tracking and translation of connections first.
func BenchmarkFirstProgram(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		_, p := space(b, "nftbench")
		b.StartTimer()
		apply(b, p, input(), true)
	}
}

// benchmarkProgram is n mappings where there is no table of ours, looking at the
// kernel included.
func benchmarkProgram(b *testing.B, n int) {
	host, _ := space(b, "nftbench")
	for _, family := range []string{"ip", "ip6"} {
		nftCommand(b, host, "", "add table "+family+" keep; add chain "+family+" keep c { type nat hook prerouting priority 0; }")
	}
	ruleset := rules.Compile(many(n))
	for b.Loop() {
		b.StopTimer()
		nftCommand(b, host, "", "add table ip egress; add table ip6 egress; delete table ip egress; delete table ip6 egress")
		// The kernel frees what was deleted later, and the next change waits for it.
		time.Sleep(50 * time.Millisecond)
		p := programmer(b, host)
		b.StartTimer()
		if changed, err := p.Apply(ruleset); err != nil || !changed {
			b.Fatal(changed, err)
		}
	}
}

// BenchmarkChangeOneAt50k is from a compiled ruleset to the kernel.
func BenchmarkChangeOneAt50k(b *testing.B) { benchmarkChange(b, false) }

// BenchmarkCompileAndChangeOneAt50k is from the input to the kernel.
func BenchmarkCompileAndChangeOneAt50k(b *testing.B) { benchmarkChange(b, true) }

func benchmarkChange(b *testing.B, compile bool) {
	_, p := space(b, "nftbench")
	in := many(50_000)
	if _, err := p.Apply(rules.Compile(in)); err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		in.Targets[i*7919%50_000].Addr4 = netip.AddrFrom4([4]byte{100, 120, byte(i >> 8), byte(i)})
		start := time.Now()
		ruleset := rules.Compile(in)
		if !compile {
			start = time.Now()
		}
		if changed, err := p.Apply(ruleset); err != nil || !changed {
			b.Fatal(changed, err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
}

// BenchmarkVerifyUnchangedAt50k is what a periodic comparison costs.
func BenchmarkVerifyUnchangedAt50k(b *testing.B) {
	_, p := space(b, "nftbench")
	if _, err := p.Apply(rules.Compile(many(50_000))); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if repaired, err := p.Verify(); err != nil || repaired {
			b.Fatal(repaired, err)
		}
	}
}

// BenchmarkReadAt50k is a full comparison, as after a restart of the process.
func BenchmarkReadAt50k(b *testing.B) {
	host, p := space(b, "nftbench")
	ruleset := rules.Compile(many(50_000))
	if _, err := p.Apply(ruleset); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		fresh := programmer(b, host)
		if changed, err := fresh.Apply(ruleset); err != nil || changed {
			b.Fatal(changed, err)
		}
	}
}
