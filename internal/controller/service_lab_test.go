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
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/internal/translate"
	webhookv1 "github.com/tailnet-egress/egress-operator/internal/webhook/v1"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

var translateOptions = translate.Options{OperatorNamespace: "tailscale", ClusterDomain: "cluster.local"}

const (
	serviceFQDN = "db.tail1234.ts.net"
	soon        = 10 * time.Second
	// settled is how long nothing must happen for a test to believe that nothing
	// will.
	settled = time.Second
)

// said collects events as "type reason note".
type said struct {
	mu     sync.Mutex
	events []string
}

func (s *said) Eventf(regarding, _ runtime.Object, eventType, reason, _, note string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object, ok := regarding.(client.Object)
	if !ok {
		panic("an event about something that is no object")
	}
	s.events = append(s.events, object.GetNamespace()+"/"+object.GetName()+": "+eventType+" "+reason+" "+fmt.Sprintf(note, args...))
}

// about returns the events of one object.
func (s *said) about(svc *corev1.Service) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, e := range s.events {
		if text, ok := strings.CutPrefix(e, svc.Namespace+"/"+svc.Name+": "); ok {
			out = append(out, text)
		}
	}
	return out
}

// serviceLab is an API server, a namespace and a running Service controller.
type serviceLab struct {
	*envtestlab.Lab
	t         *testing.T
	namespace string
	said      *said
}

// newServiceLab starts the controller; with or without the webhook.
func newServiceLab(t *testing.T, webhook bool) *serviceLab {
	t.Helper()
	l := stoppedServiceLab(t, webhook)
	l.start(webhook)
	return l
}

func stoppedServiceLab(t *testing.T, webhook bool) *serviceLab {
	t.Helper()
	lab := envtestlab.Shared(t, envtestlab.Options{Webhooks: webhook})
	return &serviceLab{Lab: lab, t: t, namespace: lab.Namespace(t), said: &said{}}
}

func (l *serviceLab) start(webhook bool) {
	l.t.Helper()
	l.Manager(l.t, func(mgr manager.Manager) error {
		r := NewServiceReconciler(mgr, translateOptions)
		r.Recorder = l.said
		if err := r.SetupWithManager(mgr); err != nil || !webhook {
			return err
		}
		return webhookv1.SetupServiceWebhookWithManager(mgr, translateOptions)
	})
}

func (l *serviceLab) service(name string, annotations ...string) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: l.namespace, Annotations: map[string]string{}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "placeholder"},
	}
	for i := 0; i < len(annotations); i += 2 {
		svc.Annotations[annotations[i]] = annotations[i+1]
	}
	return svc
}

func (l *serviceLab) create(object client.Object) {
	l.t.Helper()
	if err := l.Client.Create(l.t.Context(), object); err != nil {
		l.t.Fatalf("create %s: %v", object.GetName(), err)
	}
}

// edit changes a Service as it is now.
func (l *serviceLab) edit(svc *corev1.Service, change func()) {
	l.t.Helper()
	envtestlab.Eventually(l.t, soon, func() error {
		l.refresh(svc)
		change()
		return l.Client.Update(l.t.Context(), svc)
	})
}

func (l *serviceLab) refresh(svc *corev1.Service) {
	l.t.Helper()
	// What is absent in the answer would otherwise stay.
	key := client.ObjectKeyFromObject(svc)
	*svc = corev1.Service{}
	if err := l.Client.Get(l.t.Context(), key, svc); err != nil {
		l.t.Fatalf("get Service %s: %v", key, err)
	}
}

// target returns nil where there is none.
func (l *serviceLab) target(name string) *v1alpha1.EgressTarget {
	l.t.Helper()
	target := &v1alpha1.EgressTarget{}
	err := l.Client.Get(l.t.Context(), client.ObjectKey{Namespace: l.namespace, Name: name}, target)
	if client.IgnoreNotFound(err) != nil {
		l.t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return target
}

func (l *serviceLab) waitForTarget(name string) *v1alpha1.EgressTarget {
	l.t.Helper()
	var target *v1alpha1.EgressTarget
	envtestlab.Eventually(l.t, soon, func() error {
		if target = l.target(name); target == nil {
			return errors.New("no EgressTarget")
		}
		return nil
	})
	return target
}

func (l *serviceLab) waitForNoTarget(name string) {
	l.t.Helper()
	envtestlab.Eventually(l.t, soon, func() error {
		if l.target(name) != nil {
			return errors.New("the EgressTarget is still there")
		}
		return nil
	})
}

// waitForConditions waits until the Service has exactly these, as
// "Type=Status/Reason/Message".
func (l *serviceLab) waitForConditions(svc *corev1.Service, want ...string) {
	l.t.Helper()
	envtestlab.Eventually(l.t, soon, func() error {
		l.refresh(svc)
		var got []string
		for _, c := range svc.Status.Conditions {
			got = append(got, fmt.Sprintf("%s=%s/%s/%s", c.Type, c.Status, c.Reason, c.Message))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			return fmt.Errorf("conditions\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
		return nil
	})
}

func (l *serviceLab) externalName(name string) string {
	return names.ExternalName(names.Child(l.namespace, name), "tailscale", "cluster.local")
}

// observe gives a target the conditions "Type=Status/Reason/Message", as its own
// controller would.
func (l *serviceLab) observe(target *v1alpha1.EgressTarget, replicas, ready int32, conditions ...string) {
	l.t.Helper()
	envtestlab.Eventually(l.t, soon, func() error {
		live := l.target(target.Name)
		live.Status.ObservedGeneration = live.Generation
		live.Status.Replicas, live.Status.ReadyReplicas = &replicas, &ready
		for _, text := range conditions {
			name, rest, _ := strings.Cut(text, "=")
			parts := strings.SplitN(rest, "/", 3)
			meta.SetStatusCondition(&live.Status.Conditions, metav1.Condition{
				Type: name, Status: metav1.ConditionStatus(parts[0]), Reason: parts[1], Message: parts[2], ObservedGeneration: live.Generation,
			})
		}
		return l.Client.Status().Update(l.t.Context(), live)
	})
}

// unchanged fails the test if the object is written within the settling time.
func (l *serviceLab) unchanged(object client.Object) {
	l.t.Helper()
	key := client.ObjectKeyFromObject(object)
	version := ""
	for end := time.Now().Add(settled); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err := l.Client.Get(l.t.Context(), key, object); err != nil {
			l.t.Fatal(err)
		}
		if version != "" && object.GetResourceVersion() != version {
			l.t.Fatalf("%T %s was written though nothing changed: %v", object, key, object.GetManagedFields())
		}
		version = object.GetResourceVersion()
	}
}
