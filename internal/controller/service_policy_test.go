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

package controller

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/translate"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

// deny makes a policy for the lab's namespace that ends with the test, and waits
// until probe is refused by it.
func (l *serviceLab) deny(group, resource, expression, message string, probe client.Object) {
	l.t.Helper()
	name := "deny-" + l.namespace
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}},
		}}},
	}
	policy.Spec.Validations = []admissionregistrationv1.Validation{{Expression: expression, Message: message}}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
	binding.Spec.PolicyName = name
	binding.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	binding.Spec.MatchResources = &admissionregistrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
		MatchLabels: map[string]string{corev1.LabelMetadataName: l.namespace},
	}}
	l.create(policy)
	l.create(binding)
	l.t.Cleanup(func() {
		if err := errors.Join(l.Client.Delete(context.Background(), binding), l.Client.Delete(context.Background(), policy)); err != nil {
			l.t.Error(err)
		}
	})
	envtestlab.Eventually(l.t, soon, func() error {
		err := l.Client.Create(l.t.Context(), probe, client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), message) {
			return fmt.Errorf("not refused yet: %w", err)
		}
		return nil
	})
}

// A Service that a policy refuses after our webhook admitted it leaves nothing.
func TestServiceRefusedLaterLeavesNothing(t *testing.T) {
	l := newServiceLab(t, true)
	svc := l.service("db", v1alpha1.AnnotationTailnetFQDN, serviceFQDN)
	l.deny("", "services", "object.metadata.name != 'db'", "not this one", svc.DeepCopy())
	if err := l.Client.Create(t.Context(), svc); err == nil {
		t.Fatal("the policy let the Service pass")
	}
	time.Sleep(settled)
	if target := l.target("db"); target != nil {
		t.Errorf("EgressTarget %+v of a Service that was refused", target.Spec)
	}
}

// With the webhook down a policy on EgressTargets is told in the Service's status.
func TestRefusedTargetIsReported(t *testing.T) {
	l := newServiceLab(t, false)
	l.deny("tailscale.com", "egresstargets", "object.spec.destination.fqdn != 'secret.tail1234.ts.net'", "off limits", &v1alpha1.EgressTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "probe", Namespace: l.namespace},
		Spec:       v1alpha1.EgressTargetSpec{Destination: v1alpha1.Destination{FQDN: "secret.tail1234.ts.net"}},
	})
	svc := l.service("db", v1alpha1.AnnotationTailnetFQDN, "secret.tail1234.ts.net")
	l.create(svc)
	envtestlab.Eventually(t, soon, func() error {
		l.refresh(svc)
		if len(svc.Status.Conditions) != 1 {
			return errors.New("no condition yet")
		}
		got := svc.Status.Conditions[0]
		if got.Reason != v1alpha1.ReasonProxyFailed || !strings.HasPrefix(got.Message, "the EgressTarget for this Service is refused: ") ||
			!strings.Contains(got.Message, "off limits") {
			return fmt.Errorf("condition %+v", got)
		}
		return nil
	})
	if events := l.said.about(svc); len(events) != 1 || !strings.HasPrefix(events[0], "Warning ProxyFailed") {
		t.Errorf("events %q", events)
	}
	l.edit(svc, func() { svc.Annotations[v1alpha1.AnnotationTailnetFQDN] = serviceFQDN })
	l.waitForConditions(svc, pending)
}

// largeMetadata is a Service as clusters have them.
func largeMetadata(i int, annotations map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "service-" + strconv.Itoa(i), Namespace: "namespace-" + strconv.Itoa(i%100),
		UID: types.UID(fmt.Sprintf("5f0a3a4e-0d7e-4a0c-9f7c-%012d", i)), ResourceVersion: strconv.Itoa(1_000_000 + i),
		Labels: map[string]string{"app.kubernetes.io/name": "service", "app": strconv.Itoa(i)}, Annotations: annotations,
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(strings.Repeat(" ", 2000))}},
	}}
}

func TestUnrelatedServicesCostLittle(t *testing.T) {
	const services, limit = 10_000, 5 << 20
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	before := heap()
	for i := range services {
		stripped, err := stripService(largeMetadata(i, map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 1000)}))
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Add(stripped); err != nil {
			t.Fatal(err)
		}
	}
	used := heap() - before
	t.Logf("%d unrelated Services cost %.2f MiB", services, float64(used)/(1<<20))
	if used > limit {
		t.Errorf("%d unrelated Services cost %d bytes, at most %d are allowed", services, used, limit)
	}
	runtime.KeepAlive(store)
}

func heap() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func TestStripServiceKeepsWhatConcernsUs(t *testing.T) {
	annotations := map[string]string{v1alpha1.AnnotationTailnetIP: "100.64.0.9", v1alpha1.AnnotationTags: "tag:a", "other": "x"}
	full := largeMetadata(1, annotations)
	full.Labels[v1alpha1.AnnotationProxyClass] = "prod"
	full.ManagedFields = append(full.ManagedFields, metav1.ManagedFieldsEntry{Manager: translate.FieldOwner, Subresource: "status"})
	stripped, err := stripService(full.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	got, ok := stripped.(*metav1.PartialObjectMetadata)
	if !ok || got.UID != full.UID || len(got.Annotations) != 2 || len(got.Labels) != 1 || len(got.ManagedFields) != 1 || !concerns(got) {
		t.Errorf("got %+v", stripped)
	}
	if tombstone := (cache.DeletedFinalStateUnknown{Key: "a/b"}); true {
		if out, err := stripService(tombstone); err != nil || out != any(tombstone) {
			t.Errorf("a tombstone became %v: %v", out, err)
		}
	}
}
