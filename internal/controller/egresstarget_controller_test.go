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
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
	"github.com/tailnet-egress/egress-operator/internal/tailnetapi"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

// TestLife follows a direct target from nothing to Ready and away again, and
// looks at the truth at every step.
func TestLife(t *testing.T) {
	w := newWorld(t)
	w.start()
	target := w.target("db")
	missing := w.expect(target, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonCredentialsMissing)
	if !strings.Contains(missing.Message, "operator-oauth") || !strings.Contains(missing.Message, "auth_key") {
		t.Errorf("%q does not say what to create", missing.Message)
	}
	if children := w.children(target); len(children) > 0 {
		t.Errorf("%d objects were made without a key", len(children))
	}

	w.giveKey()
	w.expect(target, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	w.expect(target, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoReadyProxies)
	var service corev1.Service
	w.eventuallyGet(types.NamespacedName{Namespace: w.user, Name: "db"}, &service)
	if service.Spec.ClusterIP != corev1.ClusterIPNone || len(service.Spec.Selector) > 0 || len(service.Spec.Ports) != 1 {
		t.Errorf("not a headless Service without selector and with one port: %+v", service.Spec)
	}
	if !slices.Contains(target.Finalizers, v1alpha1.Finalizer) {
		t.Error("there are children but no finalizer")
	}

	pod := w.kubelet(target, false)
	w.proxy(target, pod, unresolved)
	w.expectEndpoints(w.user, "db", "!10.244.1.7")
	w.expect(target, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTargetNotFound)
	pod = w.kubelet(target, true)
	w.expectEndpoints(w.user, "db", "10.244.1.7")
	w.expect(target, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTargetNotFound)
	w.expect(target, v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
	if target.Status.Ready != "0/1" {
		t.Errorf("an unresolved target is ready %s", target.Status.Ready)
	}

	w.proxy(target, pod)
	ready := w.expect(target, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	w.expect(target, v1alpha1.ConditionResolved, metav1.ConditionTrue, v1alpha1.ReasonResolved)
	want := v1alpha1.EgressTargetStatus{Ready: "1/1", Address: "db." + w.user + ".svc.cluster.local"}
	if ready.Message != "" || target.Status.Ready != want.Ready || target.Status.Address != want.Address || !slices.Equal(target.Status.DestinationIPs, []string{"100.64.0.9"}) {
		t.Errorf("status is %+v, with message %q", target.Status, ready.Message)
	}

	w.proxy(target, pod, func(a *proxyconfig.Ack) { a.Connected, a.Message = false, "the key expired" })
	lost := w.expect(target, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoReadyProxies)
	if !strings.Contains(lost.Message, "the key expired") {
		t.Errorf("%q does not say why", lost.Message)
	}
	w.expectEndpoints(w.user, "db", "!10.244.1.7")
	w.proxy(target, pod)
	w.expect(target, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)

	w.remove(target)
	if children := w.children(target); len(children) > 0 {
		t.Errorf("%d objects are left over, such as %T %s", len(children), children[0], children[0].GetName())
	}
}

func (w *world) remove(target *v1alpha1.EgressTarget) {
	w.t.Helper()
	if err := w.Delete(w.t.Context(), target); err != nil {
		w.t.Fatal(err)
	}
	envtestlab.Eventually(w.t, patience, func() error {
		err := w.Get(w.t.Context(), client.ObjectKeyFromObject(target), target)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there: %w", err)
	})
}

func TestTranslatedTarget(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	w.start()
	target := w.target("db", translated, func(e *v1alpha1.EgressTarget) { e.Spec.Ports = nil })
	w.ready(target)
	child := names.Child(w.user, "db")
	w.expectEndpoints(w.operator, child, "10.244.1.7")
	if target.Status.Address != "db."+w.user+".svc.cluster.local" {
		t.Errorf("address is %s, want that of the user's Service", target.Status.Address)
	}
	var services corev1.ServiceList
	if err := w.List(t.Context(), &services, client.InNamespace(w.user)); err != nil || len(services.Items) > 0 {
		t.Errorf("a Service was made in the user's namespace: %v", err)
	}
	w.remove(target)
	if children := w.children(target); len(children) > 0 {
		t.Errorf("%d objects are left over", len(children))
	}
}

// TestChildrenHeal deletes, then edits, each child in turn (C05).
func TestChildrenHeal(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	w.start()
	target := w.target("db")
	pod := w.ready(target)
	generation := w.config(target).Generation

	for _, child := range w.children(target) {
		t.Run(fmt.Sprintf("delete %T", child), func(t *testing.T) {
			key := client.ObjectKeyFromObject(child)
			if err := w.Delete(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			uid := child.GetUID()
			envtestlab.Eventually(t, patience, func() error {
				if err := w.Get(t.Context(), key, child); err != nil {
					return err
				}
				if child.GetUID() == uid {
					return errors.New("not deleted yet")
				}
				return nil
			})
			// The proxy notices on its own what it lost, and says it again.
			w.register(target)
			w.proxy(target, pod)
			w.expect(target, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
		})
	}
	if got := w.config(target).Generation; got <= generation {
		t.Errorf("the lost config came back with generation %d, not above %d", got, generation)
	}
	w.idle()
	for _, child := range w.children(target) {
		t.Run(fmt.Sprintf("unlabel %T", child), func(t *testing.T) {
			edited := child.DeepCopyObject().(client.Object)
			envtestlab.Eventually(t, patience, func() error {
				if err := w.Get(t.Context(), client.ObjectKeyFromObject(child), edited); err != nil {
					return err
				}
				edited.SetLabels(nil)
				return w.Update(t.Context(), edited, client.FieldOwner("somebody"))
			})
			envtestlab.Eventually(t, patience, func() error {
				if err := w.Get(t.Context(), client.ObjectKeyFromObject(child), edited); err != nil {
					return err
				}
				for key, value := range child.GetLabels() {
					if edited.GetLabels()[key] != value {
						return fmt.Errorf("label %s is missing", key)
					}
				}
				return nil
			})
		})
	}
	set := &appsv1.StatefulSet{}
	w.eventuallyGet(types.NamespacedName{Namespace: w.operator, Name: names.Child(w.user, "db")}, set)
	set.Spec.Replicas = new(int32(5))
	if err := w.Update(t.Context(), set, client.FieldOwner("somebody")); err != nil {
		t.Fatal(err)
	}
	envtestlab.Eventually(t, patience, func() error {
		if err := w.Get(t.Context(), client.ObjectKeyFromObject(set), set); err != nil {
			return err
		}
		if *set.Spec.Replicas != 1 {
			return fmt.Errorf("%d replicas", *set.Spec.Replicas)
		}
		return nil
	})
}

func TestServiceNameTaken(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	w.start()
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.user, Name: "db"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	w.create(theirs)
	target := w.target("db")
	w.expect(target, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceNameTaken)
	now := &corev1.Service{}
	w.eventuallyGet(client.ObjectKeyFromObject(theirs), now)
	if now.ResourceVersion != theirs.ResourceVersion {
		t.Error("somebody else's Service was touched")
	}
	if children := w.children(target); len(children) > 0 {
		t.Errorf("%d objects were made for a target that was not accepted", len(children))
	}
	w.edit(target, func(e *v1alpha1.EgressTarget) { e.Spec.ServiceName = "database" })
	w.ready(target)
	w.expectEndpoints(w.user, "database", "10.244.1.7")

	// A rename leaves nothing of the earlier name.
	w.edit(target, func(e *v1alpha1.EgressTarget) { e.Spec.ServiceName = "data" })
	w.expectEndpoints(w.user, "data", "10.244.1.7")
	w.expectEndpoints(w.user, "database")
	envtestlab.Eventually(t, patience, func() error {
		err := w.Get(t.Context(), types.NamespacedName{Namespace: w.user, Name: "database"}, &corev1.Service{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the Service of the earlier name is still there: %w", err)
	})
}

// TestPortEdits holds that an edit needs no restart and few writes (C03, C09).
func TestPortEdits(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	w.start()
	target := w.target("db")
	pod := w.ready(target)
	set := &appsv1.StatefulSet{}
	key := types.NamespacedName{Namespace: w.operator, Name: names.Child(w.user, "db")}
	w.eventuallyGet(key, set)
	before := set.ResourceVersion
	generation := w.config(target).Generation

	for i, ports := range [][]v1alpha1.TargetPort{
		{{Name: "a", Port: 15432, TargetPort: 5432, Protocol: corev1.ProtocolTCP}, {Name: "b", Port: 80, Protocol: corev1.ProtocolTCP}},
		{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}},
		{{Port: 443, Protocol: corev1.ProtocolTCP}},
		manyPorts(512),
		nil,
	} {
		w.requests.take()
		w.edit(target, func(e *v1alpha1.EgressTarget) { e.Spec.Ports = ports })
		w.expect(target, v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonPending)
		w.expect(target, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPending)
		w.proxy(target, pod)
		w.expect(target, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
		// Secret, Service, EndpointSlice, and the status twice; events aside.
		writes := slices.DeleteFunc(w.requests.take(), func(s string) bool { return strings.Contains(s, "/events") })
		t.Logf("edit %d: %d writes: %q", i, len(writes), writes)
		if len(writes) > 5 {
			t.Errorf("edit %d took %d writes: %q", i, len(writes), writes)
		}
		config := w.config(target)
		if config.Generation != generation+1 || config.Targets[0].AllPorts != (ports == nil) || len(config.Targets[0].Listeners) != len(ports) {
			t.Errorf("edit %d: config is %+v", i, config)
		}
		generation = config.Generation
		var service corev1.Service
		w.eventuallyGet(types.NamespacedName{Namespace: w.user, Name: "db"}, &service)
		if len(service.Spec.Ports) != len(ports) {
			t.Errorf("edit %d: the Service has %d ports, want %d", i, len(service.Spec.Ports), len(ports))
		}
		w.idle()
	}
	w.eventuallyGet(key, set)
	if set.ResourceVersion != before {
		t.Error("an edit of ports changed the StatefulSet")
	}
}

func manyPorts(n int32) []v1alpha1.TargetPort {
	var out []v1alpha1.TargetPort
	for i := range n {
		out = append(out, v1alpha1.TargetPort{Name: fmt.Sprintf("p%d", i), Port: 10000 + i, Protocol: corev1.ProtocolTCP})
	}
	return out
}

// TestIdleAndRestart holds that nothing is written without need: not while
// nothing changes, and not by an operator that starts (C03).
func TestIdleAndRestart(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	stop := w.start()
	var targets []*v1alpha1.EgressTarget
	for i := range 5 {
		targets = append(targets, w.target(fmt.Sprintf("db%d", i)))
	}
	targets = append(targets, w.target("web", translated), w.target(strings.Repeat("long-", 14)+"x", func(e *v1alpha1.EgressTarget) {
		e.Spec.ServiceName = "long"
		e.Spec.Destination.FQDN = "long.tail1234.ts.net"
	}))
	for _, target := range targets {
		pod := w.kubelet(target, true)
		w.register(target)
		w.proxy(target, pod)
	}
	for _, target := range targets {
		w.expect(target, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	}
	w.idle()
	time.Sleep(3 * time.Second)
	if writes := w.requests.take(); len(writes) > 0 {
		t.Errorf("idle, and %d writes: %q", len(writes), writes)
	}
	stop()
	stop = w.start()
	time.Sleep(3 * time.Second)
	if writes := w.requests.take(); len(writes) > 0 {
		t.Errorf("a restart wrote %d times: %q", len(writes), writes)
	}
	// It does watch: a child of the one with a cut label heals.
	long := targets[len(targets)-1]
	for _, child := range w.children(long) {
		if service, ok := child.(*corev1.Service); ok {
			if err := w.Delete(t.Context(), service); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.eventuallyGet(types.NamespacedName{Namespace: w.user, Name: "long"}, &corev1.Service{})
	stop()
}

func TestStaleAckIsIgnored(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	w.start()
	target := w.target("db")
	pod := w.ready(target)
	w.kill(pod)
	w.expect(target, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoReadyProxies)
	w.expectEndpoints(w.user, "db")
	pod = w.kubelet(target, true)
	w.expect(target, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoReadyProxies)
	w.expectEndpoints(w.user, "db")
	w.proxy(target, pod)
	w.expect(target, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	w.expectEndpoints(w.user, "db", "10.244.1.7")
}

func TestAuthKeyLeaves(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	w.start()
	target := w.target("db")
	var secret corev1.Secret
	w.eventuallyGet(w.pod(target), &secret)
	if !strings.Contains(string(secret.Data[proxyconfig.TailscaledKey]), "tskey-auth-test") {
		t.Fatal("a new proxy has no key to log in with")
	}
	w.register(target)
	envtestlab.Eventually(t, patience, func() error {
		if err := w.Get(t.Context(), w.pod(target), &secret); err != nil {
			return err
		}
		if strings.Contains(string(secret.Data[proxyconfig.TailscaledKey]), "tskey-auth-test") {
			return errors.New("the key is still there")
		}
		return nil
	})
	if string(secret.Data[proxyconfig.ProfileKey]) != "profile-1" {
		t.Error("what tailscaled keeps was lost")
	}
	// A registered proxy needs no credentials any more.
	if err := w.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.operator, Name: "operator-oauth"}}); err != nil {
		t.Fatal(err)
	}
	w.edit(target, func(e *v1alpha1.EgressTarget) { e.Spec.Hostname = "other" })
	w.expect(target, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
}

// TestOneTargetsErrorIsItsOwn holds while others are refused, wait for a person,
// or cannot be written (C13).
func TestOneTargetsErrorIsItsOwn(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	w.start()
	good := w.target("good")
	w.ready(good)
	grouped := w.target("grouped", func(e *v1alpha1.EgressTarget) { e.Spec.ProxyGroup = "pg" })
	classed := w.target("classed", func(e *v1alpha1.EgressTarget) { e.Spec.ProxyClass = "prod" })
	w.expect(grouped, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProxyGroupNotFound)
	w.expect(classed, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProxyClassNotFound)
	for _, target := range []*v1alpha1.EgressTarget{grouped, classed} {
		if children := w.children(target); len(children) > 0 {
			t.Errorf("%s has %d children", target.Name, len(children))
		}
	}
	w.expect(good, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	w.idle()

	// From standalone to a group that does not exist: nothing is left of the first.
	w.edit(good, func(e *v1alpha1.EgressTarget) { e.Spec.ProxyGroup = "pg" })
	w.expect(good, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProxyGroupNotFound)
	envtestlab.Eventually(t, patience, func() error {
		if children := w.children(good); len(children) > 0 {
			return fmt.Errorf("%d children are left", len(children))
		}
		return nil
	})
}

// TestDeletedWithoutItsProxyClass holds that a class which is missing, or was
// never there, keeps no target from going (C11 d).
func TestDeletedWithoutItsProxyClass(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	w.start()
	class := func(e *v1alpha1.EgressTarget) { e.Spec.ProxyClass = "gone" }
	served, waiting := w.target("served"), w.target("waiting", class)
	w.ready(served)
	w.edit(served, class)
	for _, target := range []*v1alpha1.EgressTarget{served, waiting} {
		w.expect(target, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProxyClassNotFound)
		w.remove(target)
		if children := w.children(target); len(children) > 0 {
			t.Errorf("%d objects are left of %s", len(children), target.Name)
		}
	}
}

// noKeys is a control API that is down.
type noKeys struct{ asked atomic.Int32 }

func (k *noKeys) AuthKey(context.Context, tailnetapi.KeyRequest) (string, error) {
	k.asked.Add(1)
	return "", errors.New("500 Internal Server Error")
}

// TestDeletedWithoutKeys holds that a target which goes needs no key, and that
// none is asked for.
func TestDeletedWithoutKeys(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	stop := w.start()
	target := w.target("db")
	w.expect(target, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	stop()
	if err := w.Delete(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	down := &noKeys{}
	w.keys = down
	w.start()
	envtestlab.Eventually(t, patience, func() error {
		err := w.Get(t.Context(), client.ObjectKeyFromObject(target), target)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there: %w", err)
	})
	if n := down.asked.Load(); n > 0 {
		t.Errorf("a key was asked for %d times", n)
	}
}

// TestOrphans removes what a target leaves that lost its finalizer by hand.
func TestOrphans(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	stop := w.start()
	target := w.target("db")
	w.ready(target)
	stop()
	w.edit(target, func(e *v1alpha1.EgressTarget) { e.Finalizers = nil })
	if err := w.Delete(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	w.start()
	envtestlab.Eventually(t, patience, func() error {
		if children := w.children(target); len(children) > 0 {
			return fmt.Errorf("%d children are left", len(children))
		}
		return nil
	})
}

func TestEvents(t *testing.T) {
	w := newWorld(t)
	w.giveKey()
	w.start()
	target := w.target("db")
	pod := w.kubelet(target, true)
	w.proxy(target, pod, unresolved)
	w.expect(target, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTargetNotFound)
	w.proxy(target, pod)
	w.expect(target, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	want := map[string]string{
		v1alpha1.ReasonAccepted: corev1.EventTypeNormal, v1alpha1.ReasonTargetNotFound: corev1.EventTypeWarning,
		v1alpha1.ReasonResolved: corev1.EventTypeNormal, v1alpha1.ReasonReady: corev1.EventTypeNormal,
	}
	envtestlab.Eventually(t, patience, func() error {
		var list eventsv1.EventList
		if err := w.List(t.Context(), &list, client.InNamespace(w.user)); err != nil {
			return err
		}
		seen := map[string]int{}
		for _, e := range list.Items {
			seen[e.Reason]++
			if eventType, ok := want[e.Reason]; ok && e.Type != eventType {
				return fmt.Errorf("%s is an event of type %s", e.Reason, e.Type)
			}
		}
		for reason := range want {
			if seen[reason] != 1 {
				return fmt.Errorf("%d events %s, want one; all: %v", seen[reason], reason, seen)
			}
		}
		return nil
	})
}
