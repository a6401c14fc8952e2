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
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tailnet-egress/egress-operator/internal/proxy/nft"
	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
	"github.com/tailnet-egress/egress-operator/test/netlab"
)

var (
	own4    = netip.MustParseAddr("100.64.0.1")
	own6    = netip.MustParseAddr("fd7a:115c:a1e0::1")
	target4 = netip.MustParseAddr("100.64.0.9")
	target6 = netip.MustParseAddr("fd7a:115c:a1e0::9")
	other4  = netip.MustParseAddr("100.64.0.10")
)

const (
	healthPort     = 9002
	tailscaledPort = 41641
)

func input(targets ...rules.Target) rules.Input {
	return rules.Input{
		Own4: own4, Own6: own6, Pod4: netip.MustParseAddr(podIP), Pod6: netip.MustParseAddr(pod6),
		HealthPort: healthPort, TailscaledPort: tailscaledPort,
		Families: rules.Families{IPv4: true, IPv6: true},
		Targets:  targets,
	}
}

func listener(protocol proxyconfig.Protocol, port, targetPort uint16) proxyconfig.Listener {
	return proxyconfig.Listener{Protocol: protocol, Port: port, TargetPort: targetPort}
}

// many is n targets of one listener each; the first third of the ports is TCP.
func many(n int) rules.Input {
	in := input()
	for i := range n {
		protocol, port := proxyconfig.TCP, i+1
		if i >= 30000 {
			protocol, port = proxyconfig.UDP, i-30000+1
		}
		addr := netip.AddrFrom4([4]byte{100, 100, byte(i >> 8), byte(i)})
		in.Targets = append(in.Targets, rules.Target{
			ID:        fmt.Sprintf("app/t%05d", i),
			Listeners: []proxyconfig.Listener{listener(protocol, uint16(port), 443)},
			Addr4:     addr,
		})
	}
	in.HealthPort, in.TailscaledPort = 65000, 65001
	return in
}

// space is a network namespace of its own, with a Programmer in it.
func space(t testing.TB, name string) (*netlab.Host, *nft.Programmer) {
	t.Helper()
	netlab.Require(t)
	if err := netlab.Remove(name); err != nil {
		t.Fatal(err)
	}
	host, err := netlab.NewHost(name + "-host")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	return host, programmer(t, host)
}

func programmer(t testing.TB, host *netlab.Host) *nft.Programmer {
	t.Helper()
	ns, err := os.Open("/run/netns/" + host.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	p, err := nft.Open(nft.InNetNS(int(ns.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func apply(t testing.TB, p *nft.Programmer, in rules.Input, wantChange bool) {
	t.Helper()
	changed, err := p.Apply(rules.Compile(in))
	if err != nil {
		t.Fatal(err)
	}
	if changed != wantChange {
		t.Fatalf("Apply changed the kernel: %t, want %t", changed, wantChange)
	}
}

func verify(t testing.TB, p *nft.Programmer, wantRepair bool) {
	t.Helper()
	repaired, err := p.Verify()
	if err != nil {
		t.Fatal(err)
	}
	if repaired != wantRepair {
		t.Fatalf("Verify repaired something: %t, want %t", repaired, wantRepair)
	}
}

// nftCommand runs the program nft inside host.
func nftCommand(t testing.TB, host *netlab.Host, stdin string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("CANNOT RUN IN CI: the program nft is not installed")
		}
		t.Skip("SKIPPED, NOT TESTED HERE: the program nft is not installed")
	}
	command := host.Command(t.Context(), "nft", args...)
	command.Stdin = strings.NewReader(stdin)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func examples() map[string]rules.Input {
	db := rules.Target{
		ID:        "app/db",
		Listeners: []proxyconfig.Listener{listener(proxyconfig.TCP, 5432, 15432), listener(proxyconfig.UDP, 53, 53)},
		Addr4:     target4, Addr6: target6,
	}
	reset := input(db)
	reset.Reset = true
	anonymous := input(db)
	anonymous.Own4, anonymous.Own6 = netip.Addr{}, netip.Addr{}
	return map[string]rules.Input{
		"none":      input(),
		"listeners": input(db),
		"all ports": input(rules.Target{ID: "app/all", AllPorts: true, Addr4: target4, Addr6: target6}),
		"reset":     reset,
		"anonymous": anonymous,
	}
}

// What the kernel holds is what nft makes of the readable text.
func TestTextIsWhatTheKernelHolds(t *testing.T) {
	for name, in := range examples() {
		t.Run(name, func(t *testing.T) {
			ours, p := space(t, "nfttext")
			theirs, err := netlab.NewHost("nfttext-nft")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = theirs.Close() })
			want := rules.Compile(in)
			nftCommand(t, theirs, want.String(), "-f", "-")
			apply(t, p, in, true)
			a, b := nftCommand(t, ours, "", "list", "ruleset"), nftCommand(t, theirs, "", "list", "ruleset")
			if a != b {
				t.Errorf("the Programmer made\n%s\nand nft made of the text\n%s", a, b)
			}
		})
	}
}

func TestApplyIsIdleWhenEqual(t *testing.T) {
	for name, in := range examples() {
		t.Run(name, func(t *testing.T) {
			host, p := space(t, "nftidle")
			apply(t, p, in, true)
			apply(t, p, in, false)
			verify(t, p, false)
			verify(t, p, false)
			// A new process finds its rules again.
			apply(t, programmer(t, host), in, false)
		})
	}
}
