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

package status

import (
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	addr  = netip.MustParseAddr("100.64.0.9")
)

// good is a target that carries traffic.
func good() Facts {
	return Facts{
		Generation: 3, Destination: "db.tail1234.ts.net", Accepted: Verdict{Reason: v1alpha1.ReasonAccepted},
		Address: "db.app.svc.cluster.local", Replicas: 1,
		Proxies: []Proxy{{Pod: "p-0", Ready: true, Reported: true, Connected: true, Current: true, Addresses: []netip.Addr{addr}, Published: true}},
	}
}

func edited(edit func(*Facts, *Proxy)) Facts {
	f := good()
	edit(&f, &f.Proxies[0])
	return f
}

func TestTarget(t *testing.T) {
	for _, tc := range []struct {
		name  string
		facts Facts
		// want is Accepted, Resolved, Programmed, Ready: T, F or U each.
		want          string
		reason, count string
		message       string
		outcome       Outcome
	}{
		{"ready", good(), "TTTT", "Ready", "1/1", "", Done},
		{"no Pod", edited(func(f *Facts, _ *Proxy) { f.Proxies, f.Missing = nil, "Pod p-0 does not exist yet" }),
			"TUFF", "NoReadyProxies", "0/1", "Pod p-0 does not exist yet", Waiting},
		{"Pod not ready", edited(func(_ *Facts, p *Proxy) {
			*p = Proxy{Pod: "p-0", NotReady: "container egress-proxy waits: ImagePullBackOff"}
		}), "TUFF", "NoReadyProxies", "0/1", "Pod p-0 is not ready: container egress-proxy waits: ImagePullBackOff", Waiting},
		{"another Pod's report", edited(func(_ *Facts, p *Proxy) { *p = Proxy{Pod: "p-0", Ready: true} }),
			"TUFF", "NoReadyProxies", "0/1", "Pod p-0 has not reported yet", Waiting},
		{"not connected", edited(func(_ *Facts, p *Proxy) { p.Connected, p.Disconnected = false, "key expired" }),
			"TTTF", "NoReadyProxies", "0/1", "Pod p-0 is not connected to the tailnet: key expired", Waiting},
		{"draining", edited(func(_ *Facts, p *Proxy) { p.Draining = true }),
			"TTTF", "NoReadyProxies", "0/1", "Pod p-0 is draining", Waiting},
		{"earlier generation", edited(func(_ *Facts, p *Proxy) { p.Current = false }),
			"TUFF", "Pending", "0/1", "Pod p-0 has not programmed this generation yet", Waiting},
		{"not found", edited(func(_ *Facts, p *Proxy) {
			p.Addresses, p.Reason, p.Message = nil, proxyconfig.TargetNotFound, "no device has the name"
		}), "TFTF", "TargetNotFound", "0/1", "no device has the name", Waiting},
		{"no route", edited(func(_ *Facts, p *Proxy) {
			p.Addresses, p.Reason, p.Message = nil, proxyconfig.NoRouteToTarget, "no subnet router"
		}), "TFTF", "NoRouteToTarget", "0/1", "no subnet router", Waiting},
		{"not found, but not connected either", edited(func(_ *Facts, p *Proxy) {
			p.Connected, p.Addresses, p.Reason = false, nil, proxyconfig.TargetNotFound
		}), "TUTF", "NoReadyProxies", "0/1", "Pod p-0 is not connected to the tailnet", Waiting},
		{"kernel refused", edited(func(_ *Facts, p *Proxy) {
			p.Addresses, p.Reason, p.Message = nil, proxyconfig.ProgrammingFailed, "netlink: no"
		}), "TUFF", "ProgrammingFailed", "0/1", "Pod p-0: netlink: no", Waiting},
		{"not routed to", edited(func(_ *Facts, p *Proxy) { p.Published = false }),
			"TTTF", "Pending", "0/1", "Clients are not routed to the proxy yet", Waiting},
		{"no group", edited(func(f *Facts, _ *Proxy) { f.Accepted = Verdict{v1alpha1.ReasonProxyGroupNotFound, "no such group"} }),
			"FTTF", "ProxyGroupNotFound", "1/1", "no such group", Stalled},
		{"name taken", edited(func(f *Facts, _ *Proxy) { f.Accepted = Verdict{v1alpha1.ReasonServiceNameTaken, "taken"} }),
			"FTTF", "ServiceNameTaken", "1/1", "taken", Polling},
		{"cannot write, carries on", good().Written(true, "apply Role: forbidden"), "TTFT", "Ready", "1/1", "", Failed},
		{"cannot write the slice", good().Written(false, "apply EndpointSlice: forbidden"),
			"TTFF", "ProgrammingFailed", "0/1", "apply EndpointSlice: forbidden", Failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, outcome := Target(tc.facts, nil, start)
			letters := ""
			for _, c := range got.Conditions {
				letters += string(*c.Status)[:1]
				if *c.ObservedGeneration != 3 || *c.Reason == "" {
					t.Errorf("condition %s has generation %d and reason %q", *c.Type, *c.ObservedGeneration, *c.Reason)
				}
			}
			ready := got.Conditions[3]
			if letters != tc.want || *ready.Reason != tc.reason || *ready.Message != tc.message || *got.Ready != tc.count || outcome != tc.outcome {
				t.Errorf("got %s %s %q %s %s, want %s %s %q %s %s", letters, *ready.Reason, *ready.Message, *got.Ready, outcome,
					tc.want, tc.reason, tc.message, tc.count, tc.outcome)
			}
		})
	}
}

// TestTransitionTimes holds that a time moves with the status and with nothing
// else.
func TestTransitionTimes(t *testing.T) {
	first, _ := Target(good(), nil, start)
	later := start.Add(time.Hour)
	f := edited(func(f *Facts, p *Proxy) {
		f.Generation, p.Addresses = 4, []netip.Addr{netip.MustParseAddr("100.64.0.10")}
	})
	second, _ := Target(f, stored(first.Conditions), later)
	for _, c := range second.Conditions {
		if !c.LastTransitionTime.Time.Equal(start) {
			t.Errorf("%s moved to %s with its message alone", *c.Type, c.LastTransitionTime)
		}
	}
	third, _ := Target(edited(func(_ *Facts, p *Proxy) { p.Connected = false }), stored(second.Conditions), later)
	if c := meta.FindStatusCondition(stored(third.Conditions), v1alpha1.ConditionReady); !c.LastTransitionTime.Time.Equal(later) {
		t.Errorf("Ready became False and its time stayed at %s", c.LastTransitionTime)
	}
}

// TestMessagesFit holds that no message, such as a policy's, keeps a status from
// being stored.
func TestMessagesFit(t *testing.T) {
	long := strings.Repeat("é", 40_000)
	target, _ := Target(edited(func(f *Facts, _ *Proxy) { f.WriteError = long }), nil, start)
	for _, c := range append(Service(ServiceFacts{Failed: long}, nil, start), target.Conditions...) {
		if n := len(*c.Message); n > 32*1024 || !utf8.ValidString(*c.Message) {
			t.Errorf("%s has a message of %d bytes", *c.Type, n)
		}
	}
}

func stored(applied []metav1ac.ConditionApplyConfiguration) []metav1.Condition {
	var out []metav1.Condition
	for _, c := range applied {
		out = append(out, metav1.Condition{Type: *c.Type, Status: *c.Status, Reason: *c.Reason, Message: *c.Message, LastTransitionTime: *c.LastTransitionTime})
	}
	return out
}

func TestDestinationIPs(t *testing.T) {
	f := edited(func(f *Facts, p *Proxy) {
		p.Addresses = []netip.Addr{netip.MustParseAddr("fd7a:115c:a1e0::9"), addr}
		f.Proxies = append(f.Proxies, *p)
		f.Replicas = 2
	})
	got, _ := Target(f, nil, start)
	if len(got.DestinationIPs) != 2 || got.DestinationIPs[0] != "100.64.0.9" || *got.Ready != "2/2" {
		t.Errorf("got %v, %s: want each address once, in order", got.DestinationIPs, *got.Ready)
	}
}
