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
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/apply"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/internal/observe"
	"github.com/tailnet-egress/egress-operator/internal/plan"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
	"github.com/tailnet-egress/egress-operator/internal/tailnetapi"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

// patience is how long a test waits for the controller.
const patience = 10 * time.Second

// world is an API server with the EgressTarget controller, in which the test
// plays kubelet and proxy.
type world struct {
	t *testing.T
	client.Client
	lab *envtestlab.Lab
	// operator is the operator namespace, user the one of targets.
	operator, user string
	requests       *audit
	// keys, where set, are instead of those of the Secret.
	keys tailnetapi.Keys
}

// audit counts the requests of the controller that write, by what they are about.
type audit struct {
	sync.Mutex
	writes []string
}

func (a *audit) wrap(next http.RoundTripper) http.RoundTripper { return recorder{a, next} }

type recorder struct {
	audit *audit
	next  http.RoundTripper
}

func (r recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		r.audit.Lock()
		r.audit.writes = append(r.audit.writes, req.Method+" "+req.URL.Path)
		r.audit.Unlock()
	}
	return r.next.RoundTrip(req)
}

func (a *audit) take() []string {
	a.Lock()
	defer a.Unlock()
	writes := a.writes
	a.writes = nil
	return writes
}

func newWorld(t *testing.T) *world {
	t.Helper()
	lab := envtestlab.Shared(t, envtestlab.Options{})
	w := &world{t: t, Client: lab.Client, lab: lab, operator: lab.Namespace(t), user: lab.Namespace(t), requests: &audit{}}
	t.Cleanup(w.clean)
	return w
}

// clean lets no target of this test reach the controller of the next.
func (w *world) clean() {
	ctx := context.Background()
	var targets v1alpha1.EgressTargetList
	if err := w.List(ctx, &targets); err != nil {
		w.t.Error(err)
	}
	for _, target := range targets.Items {
		target.Finalizers = nil
		_ = w.Update(ctx, &target)
		_ = w.Delete(ctx, &target)
	}
}

func (w *world) settings() plan.Settings {
	return plan.Settings{OperatorNamespace: w.operator, ProxyImage: "proxy:test", ClusterDomain: "cluster.local", DrainCap: 20 * time.Second}
}

// start runs a manager until stop, or the end of the test.
func (w *world) start() (stop func()) {
	w.t.Helper()
	credentials := types.NamespacedName{Namespace: w.operator, Name: "operator-oauth"}
	cfg := rest.CopyConfig(w.lab.Config)
	cfg.Wrap(w.requests.wrap)
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: w.lab.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Cache: ManagerCache(credentials),
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	children, err := NewChildren(mgr, w.operator)
	if err != nil {
		w.t.Fatal(err)
	}
	keys := w.keys
	if keys == nil {
		keys = tailnetapi.SecretKeys{Reader: mgr.GetClient(), Secret: credentials}
	}
	r := &EgressTargetReconciler{
		Observer: observe.Observer{
			Targets: mgr.GetClient(), Children: children.GetCache(), Live: mgr.GetAPIReader(),
			Keys: keys, Settings: w.settings(),
		},
		Applier:  apply.Applier{Client: mgr.GetClient(), FieldOwner: plan.FieldOwner, Sent: &apply.Sent{}},
		Recorder: mgr.GetEventRecorder("egress-operator"),
		Now:      time.Now,
	}
	if err := r.SetupWithManager(w.t.Context(), mgr, children); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("the manager ended: %v", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) giveKey() {
	w.t.Helper()
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.operator, Name: "operator-oauth"},
		Data: map[string][]byte{tailnetapi.AuthKeyField: []byte("tskey-auth-test")}})
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	if err := w.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) target(name string, edits ...func(*v1alpha1.EgressTarget)) *v1alpha1.EgressTarget {
	w.t.Helper()
	target := &v1alpha1.EgressTarget{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.user, Name: name},
		Spec: v1alpha1.EgressTargetSpec{
			Destination: v1alpha1.Destination{FQDN: name + ".tail1234.ts.net"},
			Ports:       []v1alpha1.TargetPort{{Name: "pg", Port: 5432, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, edit := range edits {
		edit(target)
	}
	w.create(target)
	return target
}

// translated makes target as if the Service controller had.
func translated(target *v1alpha1.EgressTarget) {
	target.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: target.Name, UID: "service", Controller: new(true)}}
}

func (w *world) edit(target *v1alpha1.EgressTarget, edit func(*v1alpha1.EgressTarget)) {
	w.t.Helper()
	envtestlab.Eventually(w.t, patience, func() error {
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(target), target); err != nil {
			return err
		}
		edit(target)
		return w.Update(w.t.Context(), target)
	})
}

func (w *world) pod(target *v1alpha1.EgressTarget) types.NamespacedName {
	return types.NamespacedName{Namespace: w.operator, Name: names.Pod(names.Child(target.Namespace, target.Name), 0)}
}

// kubelet makes the Pod that the StatefulSet asks for and gives it the status.
func (w *world) kubelet(target *v1alpha1.EgressTarget, ready bool) *corev1.Pod {
	w.t.Helper()
	key := w.pod(target)
	var set appsv1.StatefulSet
	w.eventuallyGet(types.NamespacedName{Namespace: key.Namespace, Name: strings.TrimSuffix(key.Name, "-0")}, &set)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: set.Spec.Template.Labels}, Spec: set.Spec.Template.Spec}
	// No controller makes the ServiceAccount's token or schedules here.
	pod.Spec.NodeName = "node-1"
	if err := w.Create(w.t.Context(), pod); err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
	w.eventuallyGet(key, pod)
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.244.1.7", PodIPs: []corev1.PodIP{{IP: "10.244.1.7"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: conditionStatus(ready)}},
	}
	if err := w.Status().Update(w.t.Context(), pod); err != nil {
		w.t.Fatal(err)
	}
	return pod
}

func conditionStatus(b bool) corev1.ConditionStatus {
	if b {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// kill removes the Pod at once, as no kubelet is there to confirm.
func (w *world) kill(pod *corev1.Pod) {
	w.t.Helper()
	if err := w.Delete(w.t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		w.t.Fatal(err)
	}
}

// config is what the proxy of target reads.
func (w *world) config(target *v1alpha1.EgressTarget) proxyconfig.Config {
	w.t.Helper()
	var secret corev1.Secret
	w.eventuallyGet(w.pod(target), &secret)
	wanted, bad, err := proxyconfig.Decode(secret.Data[proxyconfig.ConfigKey])
	if err != nil || len(bad) > 0 {
		w.t.Fatal(err, bad)
	}
	return wanted
}

// proxy acknowledges the config that there is, as the Pod would.
func (w *world) proxy(target *v1alpha1.EgressTarget, pod *corev1.Pod, edits ...func(*proxyconfig.Ack)) {
	w.t.Helper()
	wanted := w.config(target)
	ack := proxyconfig.Ack{PodUID: string(pod.UID), ConfigGeneration: wanted.Generation, Connected: true}
	for _, t := range wanted.Targets {
		ack.Targets = append(ack.Targets, proxyconfig.TargetAck{ID: t.ID, Revision: t.Revision, Addresses: []netip.Addr{netip.MustParseAddr("100.64.0.9")}})
	}
	for _, edit := range edits {
		edit(&ack)
	}
	data, err := ack.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]string{proxyconfig.AckKey: string(data)}})
	if err != nil {
		w.t.Fatal(err)
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.operator, Name: names.Ack(pod.Name)}}
	envtestlab.Eventually(w.t, patience, func() error {
		return w.Patch(w.t.Context(), object, client.RawPatch(types.MergePatchType, patch), client.FieldOwner("egress-proxy"))
	})
}

func unresolved(ack *proxyconfig.Ack) {
	for i := range ack.Targets {
		ack.Targets[i].Addresses, ack.Targets[i].Reason, ack.Targets[i].Message = nil, proxyconfig.TargetNotFound, "no device has the name"
	}
}

// register puts into the Secret what a proxy and tailscaled do once logged in.
func (w *world) register(target *v1alpha1.EgressTarget) {
	w.t.Helper()
	key := w.pod(target)
	var secret corev1.Secret
	w.eventuallyGet(key, &secret)
	patch := client.MergeFrom(secret.DeepCopy())
	secret.Data[proxyconfig.DeviceIDKey], secret.Data[proxyconfig.ProfileKey] = []byte("n1"), []byte("profile-1")
	if err := w.Patch(w.t.Context(), &secret, patch, client.FieldOwner("tailscaled")); err != nil {
		w.t.Fatal(err)
	}
}

// ready brings a target to Ready.
func (w *world) ready(target *v1alpha1.EgressTarget) *corev1.Pod {
	w.t.Helper()
	pod := w.kubelet(target, true)
	w.register(target)
	w.proxy(target, pod)
	w.expect(target, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	w.idle()
	return pod
}

// idle waits until the controller has written nothing for a second.
func (w *world) idle() {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		w.requests.take()
		time.Sleep(time.Second)
		writes := w.requests.take()
		if len(writes) == 0 {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the controller goes on writing: %q", writes)
		}
	}
}

func (w *world) eventuallyGet(key types.NamespacedName, o client.Object) {
	w.t.Helper()
	envtestlab.Eventually(w.t, patience, func() error { return w.Get(w.t.Context(), key, o) })
}

// expect waits for a condition about the target's present generation.
func (w *world) expect(target *v1alpha1.EgressTarget, name string, status metav1.ConditionStatus, reason string) *metav1.Condition {
	w.t.Helper()
	var condition *metav1.Condition
	envtestlab.Eventually(w.t, patience, func() error {
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(target), target); err != nil {
			return err
		}
		condition = meta.FindStatusCondition(target.Status.Conditions, name)
		if condition == nil || condition.Status != status || condition.Reason != reason || condition.ObservedGeneration != target.Generation {
			return fmt.Errorf("want %s=%s %s of generation %d, have %+v", name, status, reason, target.Generation, target.Status.Conditions)
		}
		return nil
	})
	return condition
}

// endpoints are the addresses of a Service, with "!" where they are not ready.
func (w *world) endpoints(namespace, service string) []string {
	w.t.Helper()
	var list discoveryv1.EndpointSliceList
	if err := w.List(w.t.Context(), &list, client.InNamespace(namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service}); err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			mark := ""
			if e.Conditions.Ready == nil || !*e.Conditions.Ready {
				mark = "!"
			}
			for _, a := range e.Addresses {
				out = append(out, mark+a)
			}
		}
	}
	return out
}

func (w *world) expectEndpoints(namespace, service string, want ...string) {
	w.t.Helper()
	envtestlab.Eventually(w.t, patience, func() error {
		if got := w.endpoints(namespace, service); fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("Service %s has the endpoints %q, want %q", service, got, want)
		}
		return nil
	})
}

// children are all objects that bear the labels of a target, as Kind name.
func (w *world) children(target *v1alpha1.EgressTarget) []client.Object {
	w.t.Helper()
	reader := observe.Observer{Live: w.Client, Settings: w.settings()}
	live, err := reader.LiveChildren(w.t.Context(), client.ObjectKeyFromObject(target))
	if err != nil {
		w.t.Fatal(err)
	}
	var out []client.Object
	for _, c := range live {
		if _, isPod := c.(*corev1.Pod); !isPod {
			out = append(out, c)
		}
	}
	return out
}
