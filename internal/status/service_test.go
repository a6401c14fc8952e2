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

package status_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/status"
)

// seen is a target with the conditions "Type=Status/Reason/Message".
func seen(replicas, ready int32, conditions ...string) *v1alpha1.EgressTarget {
	target := &v1alpha1.EgressTarget{Spec: v1alpha1.EgressTargetSpec{Destination: v1alpha1.Destination{FQDN: "db.tail1234.ts.net"}}}
	target.Status = v1alpha1.EgressTargetStatus{ObservedGeneration: 3, Replicas: &replicas, ReadyReplicas: &ready}
	for _, text := range conditions {
		name, rest, _ := strings.Cut(text, "=")
		parts := strings.SplitN(rest, "/", 3)
		target.Status.Conditions = append(target.Status.Conditions, metav1.Condition{
			Type: name, Status: metav1.ConditionStatus(parts[0]), Reason: parts[1], Message: parts[2],
		})
	}
	return target
}

func TestService(t *testing.T) {
	ready := []string{"Accepted=True/Accepted/", "Programmed=True/Programmed/", "Ready=True/Ready/"}
	for _, tc := range []struct {
		name  string
		facts status.ServiceFacts
		want  []string
	}{
		{"standalone, no target yet", status.ServiceFacts{},
			[]string{"TailscaleProxyReady=False/ProxyPending/The EgressTarget has no status yet"}},
		{"standalone, no status yet", status.ServiceFacts{Target: seen(0, 0)},
			[]string{"TailscaleProxyReady=False/ProxyPending/The EgressTarget has no status yet"}},
		{"standalone, ready", status.ServiceFacts{Target: seen(1, 1, ready...)},
			[]string{"TailscaleProxyReady=True/ProxyCreated/Traffic to db.tail1234.ts.net is forwarded"}},
		{"standalone, not there yet", status.ServiceFacts{Target: seen(1, 0, "Ready=False/TargetNotFound/no such device")},
			[]string{"TailscaleProxyReady=False/ProxyPending/no such device"}},
		{"standalone, no class yet", status.ServiceFacts{Target: seen(1, 0, "Ready=False/ProxyClassNotFound/no ProxyClass prod")},
			[]string{"TailscaleProxyReady=False/ProxyPending/no ProxyClass prod"}},
		{"standalone, no key", status.ServiceFacts{Target: seen(1, 0, "Ready=False/CredentialsMissing/no Secret")},
			[]string{"TailscaleProxyReady=False/ProxyFailed/no Secret"}},
		{"standalone, invalid while the last good one carries traffic", status.ServiceFacts{Invalid: "bad name", Target: seen(1, 1, ready...)},
			[]string{"TailscaleProxyReady=False/ProxyInvalid/bad name"}},
		{"standalone, not applied", status.ServiceFacts{Failed: "a policy", Target: seen(1, 1, ready...)},
			[]string{"TailscaleProxyReady=False/ProxyFailed/a policy"}},
		{"grouped, no target yet", status.ServiceFacts{Grouped: true}, []string{
			"TailscaleEgressSvcValid=Unknown/ProxyGroupNotReady/The EgressTarget has no status yet",
			"TailscaleEgressSvcConfigured=False/ConfigurationFailed/The EgressTarget has no status yet",
			"TailscaleEgressSvcReady=False/ClusterResourcesNotReady/The EgressTarget has no status yet"}},
		{"grouped, no group", status.ServiceFacts{Grouped: true, Target: seen(0, 0,
			"Accepted=False/ProxyGroupNotFound/no ProxyGroup x", "Programmed=False/Pending/no proxies", "Ready=False/ProxyGroupNotFound/no ProxyGroup x")}, []string{
			"TailscaleEgressSvcValid=Unknown/ProxyGroupNotReady/no ProxyGroup x",
			"TailscaleEgressSvcConfigured=False/ConfigurationFailed/no proxies",
			"TailscaleEgressSvcReady=False/ClusterResourcesNotReady/no ProxyGroup x"}},
		{"grouped, not acceptable", status.ServiceFacts{Grouped: true, Target: seen(2, 0, "Accepted=False/PortsExhausted/no ports left")}, []string{
			"TailscaleEgressSvcValid=False/EgressSvcInvalid/no ports left",
			"TailscaleEgressSvcConfigured=False/ConfigurationFailed/The EgressTarget has no status yet",
			"TailscaleEgressSvcReady=False/ClusterResourcesNotReady/no ports left"}},
		{"grouped, all ready", status.ServiceFacts{Grouped: true, Target: seen(3, 3, ready...)}, []string{
			"TailscaleEgressSvcValid=True/EgressSvcValid/", "TailscaleEgressSvcConfigured=True/Configured/",
			"TailscaleEgressSvcReady=True/ReadyToRouteTraffic/3 out of 3 replicas are ready to route traffic"}},
		{"grouped, some ready", status.ServiceFacts{Grouped: true, Target: seen(3, 2, ready...)}, []string{
			"TailscaleEgressSvcValid=True/EgressSvcValid/", "TailscaleEgressSvcConfigured=True/Configured/",
			"TailscaleEgressSvcReady=True/PartiallyReadyToRouteTraffic/2 out of 3 replicas are ready to route traffic"}},
		{"grouped, none ready", status.ServiceFacts{Grouped: true, Target: seen(3, 0, "Accepted=True/Accepted/", "Programmed=False/Pending/wait")}, []string{
			"TailscaleEgressSvcValid=True/EgressSvcValid/", "TailscaleEgressSvcConfigured=False/ConfigurationFailed/wait",
			"TailscaleEgressSvcReady=False/NotReadyToRouteTraffic/0 out of 3 replicas are ready to route traffic"}},
		{"grouped, no proxies", status.ServiceFacts{Grouped: true, Target: seen(0, 0, "Accepted=True/Accepted/", "Programmed=False/Pending/wait")}, []string{
			"TailscaleEgressSvcValid=True/EgressSvcValid/", "TailscaleEgressSvcConfigured=False/ConfigurationFailed/wait",
			"TailscaleEgressSvcReady=False/NoProxiesConfigured/0 out of 0 replicas are ready to route traffic"}},
		{"grouped, invalid while the last good one carries traffic", status.ServiceFacts{Grouped: true, Invalid: "bad port", Target: seen(2, 2, ready...)}, []string{
			"TailscaleEgressSvcValid=False/EgressSvcInvalid/bad port", "TailscaleEgressSvcConfigured=False/ConfigurationFailed/bad port",
			"TailscaleEgressSvcReady=True/ReadyToRouteTraffic/2 out of 2 replicas are ready to route traffic"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, c := range status.Service(tc.facts, nil, time.Unix(1000, 0)) {
				got = append(got, fmt.Sprintf("%s=%s/%s/%s", *c.Type, *c.Status, *c.Reason, *c.Message))
			}
			if g, w := strings.Join(got, "\n"), strings.Join(tc.want, "\n"); g != w {
				t.Errorf("got:\n%s\nwant:\n%s", g, w)
			}
		})
	}
}

func TestServiceTimesAndGenerations(t *testing.T) {
	then, now := metav1.Unix(1000, 0), time.Unix(2000, 0)
	previous := []metav1.Condition{{Type: v1alpha1.ServiceProxyReady, Status: metav1.ConditionFalse, LastTransitionTime: then}}
	one := func(facts status.ServiceFacts) metav1ac.ConditionApplyConfiguration {
		return status.Service(facts, previous, now)[0]
	}
	if got := one(status.ServiceFacts{Invalid: "another"}).LastTransitionTime; !got.Time.Equal(then.Time) {
		t.Errorf("a condition that stays False moved to %v", got)
	}
	if got := one(status.ServiceFacts{Target: seen(1, 1, "Ready=True/Ready/")}).LastTransitionTime; !got.Time.Equal(now) {
		t.Errorf("a condition that became True is of %v", got)
	}
	for _, tc := range []struct {
		name  string
		facts status.ServiceFacts
		want  *int64
	}{
		{"neither", status.ServiceFacts{}, nil},
		{"the target's", status.ServiceFacts{Target: seen(1, 1)}, new(int64(3))},
		{"the Service's", status.ServiceFacts{Generation: 7, Target: seen(1, 1)}, new(int64(7))},
	} {
		if got := one(tc.facts).ObservedGeneration; !ptr.Equal(got, tc.want) {
			t.Errorf("%s: observedGeneration = %v, want %v", tc.name, got, tc.want)
		}
	}
}
