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
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/translate"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

const pending = "TailscaleProxyReady=False/ProxyPending/The EgressTarget has no status yet"

// The webhook is down: the controller does all of it, with the same texts.
func TestServiceLife(t *testing.T) {
	l := newServiceLab(t, false)
	svc := l.service("db", v1alpha1.AnnotationTailnetFQDN, serviceFQDN)
	l.create(svc)
	target := l.waitForTarget("db")
	if target.Spec.Destination.FQDN != serviceFQDN || translate.OwnershipOf(svc, target) != translate.Owned {
		t.Errorf("EgressTarget %+v of owners %v", target.Spec, target.OwnerReferences)
	}
	l.waitForConditions(svc, pending)
	if svc.Spec.ExternalName != l.externalName("db") {
		t.Errorf("externalName = %q, want %q", svc.Spec.ExternalName, l.externalName("db"))
	}

	l.observe(target, 1, 0, "Accepted=True/Accepted/", "Ready=False/TargetNotFound/no such device")
	l.waitForConditions(svc, "TailscaleProxyReady=False/ProxyPending/no such device")
	l.observe(target, 1, 1, "Ready=True/Ready/")
	l.waitForConditions(svc, "TailscaleProxyReady=True/ProxyCreated/Traffic to db.tail1234.ts.net is forwarded")
	if got := svc.Status.Conditions[0].ObservedGeneration; got != target.Generation {
		t.Errorf("observedGeneration = %d, want %d", got, target.Generation)
	}
	l.unchanged(svc)

	since := svc.Status.Conditions[0].LastTransitionTime
	l.edit(svc, func() { svc.Annotations[v1alpha1.AnnotationTailnetFQDN] = "db2.tail1234.ts.net" })
	l.waitForConditions(svc, "TailscaleProxyReady=True/ProxyCreated/Traffic to db2.tail1234.ts.net is forwarded")
	if now := svc.Status.Conditions[0].LastTransitionTime; !now.Equal(&since) {
		t.Errorf("lastTransitionTime moved from %v to %v without a transition", since, now)
	}

	// One that becomes invalid keeps its last good target.
	l.edit(svc, func() { svc.Annotations[v1alpha1.AnnotationTailnetFQDN] = "db" })
	_, errs := translate.Service(svc, translateOptions)
	l.waitForConditions(svc, "TailscaleProxyReady=False/ProxyInvalid/"+translate.Message(errs))
	if target := l.target("db"); target == nil || target.Spec.Destination.FQDN != "db2.tail1234.ts.net" {
		t.Errorf("an invalid Service has the EgressTarget %+v", target)
	}

	l.edit(svc, func() { svc.Annotations = nil })
	l.waitForNoTarget("db")
	l.waitForConditions(svc)
	l.unchanged(svc)
	for _, entry := range svc.ManagedFields {
		if ourStatus(entry) {
			t.Errorf("a Service that is no longer ours still has our status: %v", entry)
		}
	}
	want := []string{
		"Normal EgressTargetCreated Created EgressTarget db",
		"Warning TargetNotFound no such device",
		"Normal ProxyCreated Traffic to db.tail1234.ts.net is forwarded",
		"Normal ProxyCreated Traffic to db2.tail1234.ts.net is forwarded",
		"Warning ProxyInvalid " + translate.Message(errs),
		"Normal EgressTargetDeleted Deleted EgressTarget db: the Service no longer asks for it",
	}
	if got := l.said.about(svc); !slices.Equal(got, want) {
		t.Errorf("events\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestServiceMovesBetweenModes(t *testing.T) {
	l := newServiceLab(t, false)
	svc := l.service("db", v1alpha1.AnnotationTailnetIP, "100.64.0.9", v1alpha1.AnnotationHostname, "app-db")
	l.create(svc)
	l.waitForConditions(svc, pending)

	l.edit(svc, func() {
		svc.Annotations[v1alpha1.AnnotationProxyGroup] = "egress"
		svc.Spec.Ports = []corev1.ServicePort{{Port: 5432}}
	})
	l.waitForConditions(svc,
		"TailscaleEgressSvcValid=Unknown/ProxyGroupNotReady/The EgressTarget has no status yet",
		"TailscaleEgressSvcConfigured=False/ConfigurationFailed/The EgressTarget has no status yet",
		"TailscaleEgressSvcReady=False/ClusterResourcesNotReady/The EgressTarget has no status yet")
	target := l.target("db")
	if target.Spec.ProxyGroup != "egress" || target.Spec.Hostname != "" || len(target.Spec.Ports) != 1 {
		t.Errorf("EgressTarget %+v", target.Spec)
	}
	l.observe(target, 3, 2, "Accepted=True/Accepted/", "Programmed=True/Programmed/", "Ready=True/Ready/")
	l.waitForConditions(svc,
		"TailscaleEgressSvcValid=True/EgressSvcValid/",
		"TailscaleEgressSvcConfigured=True/Configured/",
		"TailscaleEgressSvcReady=True/PartiallyReadyToRouteTraffic/2 out of 3 replicas are ready to route traffic")

	l.edit(svc, func() {
		delete(svc.Annotations, v1alpha1.AnnotationProxyGroup)
		svc.Spec.Ports = nil
	})
	l.waitForConditions(svc, "TailscaleProxyReady=True/ProxyCreated/Traffic to 100.64.0.9 is forwarded")
	if target := l.target("db"); target.Spec.ProxyGroup != "" || target.Spec.Hostname != "app-db" || len(target.Spec.Ports) != 0 {
		t.Errorf("EgressTarget %+v", target.Spec)
	}
}

func TestForeignTargetIsLeftAlone(t *testing.T) {
	l := newServiceLab(t, false)
	foreign := &v1alpha1.EgressTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: l.namespace},
		Spec:       v1alpha1.EgressTargetSpec{Destination: v1alpha1.Destination{IP: "100.64.0.1"}},
	}
	l.create(foreign)
	svc := l.service("db", v1alpha1.AnnotationTailnetIP, "100.64.0.9")
	l.create(svc)
	l.waitForConditions(svc, "TailscaleProxyReady=False/ProxyFailed/"+translate.ForeignText(svc))
	l.unchanged(foreign)

	l.edit(svc, func() { svc.Annotations = nil })
	l.waitForConditions(svc)
	l.unchanged(foreign)

	l.edit(svc, func() { svc.Annotations = map[string]string{v1alpha1.AnnotationTailnetIP: "100.64.0.9"} })
	l.waitForConditions(svc, "TailscaleProxyReady=False/ProxyFailed/"+translate.ForeignText(svc))
	if err := l.Client.Delete(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	l.waitForConditions(svc, pending)
	if target := l.target("db"); target.Spec.Destination.IP != "100.64.0.9" {
		t.Errorf("EgressTarget %+v", target.Spec)
	}
}

// A new Service of an old name waits for what the old one left.
func TestInheritedTargetIsWaitedFor(t *testing.T) {
	l := newServiceLab(t, false)
	svc := l.service("db", v1alpha1.AnnotationTailnetIP, "100.64.0.1")
	l.create(svc)
	old := l.waitForTarget("db")
	l.waitForConditions(svc, pending)
	if err := l.Client.Delete(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	svc = l.service("db", v1alpha1.AnnotationTailnetIP, "100.64.0.9")
	l.create(svc)
	l.waitForConditions(svc, pending)
	l.unchanged(old)
	// There is no garbage collector here.
	if err := l.Client.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	envtestlab.Eventually(t, soon, func() error {
		if target := l.target("db"); target == nil || target.Spec.Destination.IP != "100.64.0.9" {
			return apierrors.NewNotFound(corev1.Resource("egresstargets"), "db")
		}
		return nil
	})
}

func TestDeletedAndEditedTargetIsPutBack(t *testing.T) {
	l := newServiceLab(t, false)
	svc := l.service("db", v1alpha1.AnnotationTailnetFQDN, serviceFQDN)
	l.create(svc)
	target := l.waitForTarget("db")
	l.waitForConditions(svc, pending)
	if err := l.Client.Delete(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	envtestlab.Eventually(t, soon, func() error {
		if again := l.target("db"); again == nil || again.UID == target.UID {
			return apierrors.NewNotFound(corev1.Resource("egresstargets"), "db")
		}
		return nil
	})
	edited := l.target("db")
	edited.Spec.Destination = v1alpha1.Destination{FQDN: "other.tail1234.ts.net"}
	if err := l.Client.Update(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	envtestlab.Eventually(t, soon, func() error {
		if target := l.target("db"); target.Spec.Destination.FQDN != serviceFQDN {
			return apierrors.NewBadRequest("the edit stands")
		}
		return nil
	})
}

func TestUnexpectedTypeIsToldOnce(t *testing.T) {
	l := newServiceLab(t, false)
	svc := l.service("db", v1alpha1.AnnotationTailnetFQDN, serviceFQDN)
	l.create(svc)
	l.waitForTarget("db")
	l.edit(svc, func() {
		svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Port: 80}}}
	})
	l.waitForNoTarget("db")
	for _, value := range []string{"a", "b", "c"} {
		l.edit(svc, func() { svc.Labels = map[string]string{"x": value} })
	}
	l.waitForConditions(svc)
	time.Sleep(settled)
	got := slices.DeleteFunc(l.said.about(svc), func(e string) bool { return !strings.HasPrefix(e, "Warning") })
	want := "Warning UnexpectedServiceType unexpected egress Service type ClusterIP. The only supported type is ExternalName."
	if len(got) != 1 || got[0] != want {
		t.Errorf("events %q, want one %q", got, want)
	}
}

// What happened while no operator ran is seen when one starts.
func TestServiceControllerCatchesUp(t *testing.T) {
	l := stoppedServiceLab(t, false)
	good, bad := l.service("good", v1alpha1.AnnotationTailnetFQDN, serviceFQDN), l.service("bad", v1alpha1.AnnotationTailnetFQDN, "db")
	kept := l.service("kept", v1alpha1.AnnotationTailnetFQDN, serviceFQDN)
	l.t.Run("first operator", func(t *testing.T) {
		first := &serviceLab{Lab: l.Lab, t: t, namespace: l.namespace, said: &said{}}
		first.start(false)
		first.create(good)
		first.create(bad)
		first.create(kept)
		first.waitForConditions(good, pending)
		first.waitForConditions(kept, pending)
		_, errs := translate.Service(bad, translateOptions)
		first.waitForConditions(bad, "TailscaleProxyReady=False/ProxyInvalid/"+translate.Message(errs))
	})
	l.edit(good, func() { good.Annotations = nil })
	l.edit(bad, func() { bad.Annotations = nil })
	l.refresh(kept)
	version := kept.ResourceVersion
	l.start(false)
	l.waitForConditions(good)
	l.waitForConditions(bad)
	l.waitForNoTarget("good")
	if l.unchanged(kept); kept.ResourceVersion != version {
		t.Error("a restart wrote a Service that was as it should be")
	}
	if events := l.said.about(kept); len(events) > 0 {
		t.Errorf("a restart said %q", events)
	}
}

// Another operator may have left conditions of the same types.
func TestLeftOverConditionsAreRemoved(t *testing.T) {
	l := newServiceLab(t, false)
	svc := l.service("db", v1alpha1.AnnotationTailnetFQDN, serviceFQDN)
	l.create(svc)
	l.waitForConditions(svc, pending)
	now := metav1.Now()
	svc.Status.Conditions = append(svc.Status.Conditions,
		metav1.Condition{Type: v1alpha1.ServiceEgressReady, Status: metav1.ConditionTrue, Reason: "Old", LastTransitionTime: now},
		metav1.Condition{Type: "example.com/Theirs", Status: metav1.ConditionTrue, Reason: "Theirs", LastTransitionTime: now})
	if err := l.Client.Status().Update(t.Context(), svc, client.FieldOwner("old-operator")); err != nil {
		t.Fatal(err)
	}
	l.waitForConditions(svc, pending, "example.com/Theirs=True/Theirs/")
	l.edit(svc, func() { svc.Annotations = nil })
	l.waitForConditions(svc, "example.com/Theirs=True/Theirs/")
}

func TestDeletingServiceKeepsItsTarget(t *testing.T) {
	l := newServiceLab(t, false)
	svc := l.service("db", v1alpha1.AnnotationTailnetFQDN, serviceFQDN)
	svc.Finalizers = []string{"example.com/held"}
	l.create(svc)
	target := l.waitForTarget("db")
	l.waitForConditions(svc, pending)
	if err := l.Client.Delete(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	l.unchanged(target)
	l.edit(svc, func() { svc.Finalizers = nil })
}

// C04: who applies a placeholder with force, again and again, changes nothing.
func TestPlaceholderTugOfWar(t *testing.T) {
	l := newServiceLab(t, true)
	manifest := corev1ac.Service("db", l.namespace).
		WithAnnotations(map[string]string{v1alpha1.AnnotationTailnetFQDN: serviceFQDN}).
		WithSpec(corev1ac.ServiceSpec().WithType(corev1.ServiceTypeExternalName).WithExternalName("placeholder"))
	reapply := func() {
		t.Helper()
		copied := *manifest
		copied.ObjectMetaApplyConfiguration = &metav1ac.ObjectMetaApplyConfiguration{
			Name: manifest.Name, Namespace: manifest.Namespace, Annotations: manifest.Annotations,
		}
		copied.Spec = corev1ac.ServiceSpec().WithType(corev1.ServiceTypeExternalName).WithExternalName("placeholder")
		if err := l.Client.Apply(t.Context(), &copied, client.FieldOwner("gitops"), client.ForceOwnership); err != nil {
			t.Fatal(err)
		}
	}
	reapply()
	svc := l.service("db")
	l.waitForConditions(svc, pending)
	target := l.waitForTarget("db")
	// The API server sorts managed fields by time and compares them in order: the
	// first apply after our status was written changes their order, and that alone.
	time.Sleep(1100 * time.Millisecond)
	reapply()
	l.refresh(svc)
	version, generation := svc.ResourceVersion, svc.Generation
	for range 20 {
		reapply()
		l.refresh(svc)
		if svc.Spec.ExternalName != l.externalName("db") || svc.Generation != generation || svc.ResourceVersion != version {
			t.Fatalf("externalName %q, generation %d (was %d), resourceVersion %s (was %s), by %v",
				svc.Spec.ExternalName, svc.Generation, generation, svc.ResourceVersion, version, svc.ManagedFields)
		}
		// The API server stamps managed fields by the second.
		time.Sleep(150 * time.Millisecond)
	}
	if now := l.target("db"); now.ResourceVersion != target.ResourceVersion {
		t.Errorf("the EgressTarget was written: %s, was %s", now.ResourceVersion, target.ResourceVersion)
	}
}
