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

package apply_test

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	v1alpha1ac "github.com/tailnet-egress/egress-operator/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/apply"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

func TestMain(m *testing.M) { os.Exit(envtestlab.Main(m)) }

type testCase struct {
	desired func() runtime.ApplyConfiguration
	live    func() client.Object
	// edit changes one field of ours, and one that is not ours.
	edit func(client.Object)
	// fewer wants less than desired.
	fewer func() runtime.ApplyConfiguration
}

func podTemplate(args ...string) *corev1ac.PodTemplateSpecApplyConfiguration {
	return corev1ac.PodTemplateSpec().WithLabels(map[string]string{"a": "b"}).WithSpec(corev1ac.PodSpec().
		WithVolumes(
			corev1ac.Volume().WithName("empty").WithEmptyDir(corev1ac.EmptyDirVolumeSource()),
			corev1ac.Volume().WithName("secret").WithSecret(corev1ac.SecretVolumeSource().WithSecretName("s").
				WithItems(corev1ac.KeyToPath().WithKey("k").WithPath("p")))).
		WithContainers(corev1ac.Container().WithName("c").WithImage("i").WithArgs(args...).
			WithEnv(corev1ac.EnvVar().WithName("X").WithValue("1")).
			WithPorts(corev1ac.ContainerPort().WithName("health").WithContainerPort(9002).WithProtocol(corev1.ProtocolTCP)).
			WithReadinessProbe(corev1ac.Probe().WithPeriodSeconds(1).WithHTTPGet(corev1ac.HTTPGetAction().WithPath("/").WithPort(intstr.FromInt32(9002)))).
			WithResources(corev1ac.ResourceRequirements().WithRequests(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("0.01")})).
			WithVolumeMounts(corev1ac.VolumeMount().WithName("empty").WithMountPath("/x"))))
}

func cases() map[string]testCase {
	const ns = "default"
	return map[string]testCase{
		"Secret": {
			desired: func() runtime.ApplyConfiguration {
				return corev1ac.Secret("s", ns).WithLabels(map[string]string{"l": "1"}).WithData(map[string][]byte{"a": []byte("1"), "b": {0xff}})
			},
			live: func() client.Object { return &corev1.Secret{} },
			edit: func(o client.Object) {
				s := o.(*corev1.Secret)
				s.Data["a"], s.Data["z"] = []byte("2"), []byte("theirs")
			},
			fewer: func() runtime.ApplyConfiguration {
				return corev1ac.Secret("s", ns).WithData(map[string][]byte{"a": []byte("1")})
			},
		},
		"ConfigMap": {
			desired: func() runtime.ApplyConfiguration {
				return corev1ac.ConfigMap("c", ns).WithLabels(map[string]string{"l": "1"})
			},
			live: func() client.Object { return &corev1.ConfigMap{} },
			edit: func(o client.Object) {
				o.SetLabels(map[string]string{"x": "y"})
				o.(*corev1.ConfigMap).Data = map[string]string{"k": "v"}
			},
			fewer: func() runtime.ApplyConfiguration {
				return corev1ac.ConfigMap("c", ns).WithAnnotations(map[string]string{"n": "1"})
			},
		},
		"ServiceAccount": {
			desired: func() runtime.ApplyConfiguration {
				return corev1ac.ServiceAccount("a", ns).WithLabels(map[string]string{"l": "1"})
			},
			live: func() client.Object { return &corev1.ServiceAccount{} },
			edit: func(o client.Object) { o.SetLabels(nil) },
			fewer: func() runtime.ApplyConfiguration {
				return corev1ac.ServiceAccount("a", ns).WithAnnotations(map[string]string{"n": "1"})
			},
		},
		"Role": {
			desired: func() runtime.ApplyConfiguration {
				return rbacv1ac.Role("r", ns).WithRules(
					rbacv1ac.PolicyRule().WithAPIGroups("").WithResources("secrets").WithResourceNames("x").WithVerbs("get", "watch"),
					rbacv1ac.PolicyRule().WithAPIGroups("").WithResources("configmaps").WithResourceNames("x").WithVerbs("get"))
			},
			live: func() client.Object { return &rbacv1.Role{} },
			edit: func(o client.Object) { r := o.(*rbacv1.Role); r.Rules = r.Rules[:1] },
			fewer: func() runtime.ApplyConfiguration {
				return rbacv1ac.Role("r", ns).WithRules(rbacv1ac.PolicyRule().WithAPIGroups("").WithResources("secrets").WithVerbs("get"))
			},
		},
		"RoleBinding": {
			desired: func() runtime.ApplyConfiguration {
				return rbacv1ac.RoleBinding("r", ns).WithLabels(map[string]string{"l": "1"}).
					WithRoleRef(rbacv1ac.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("Role").WithName("r")).
					WithSubjects(rbacv1ac.Subject().WithKind("ServiceAccount").WithName("a").WithNamespace(ns))
			},
			live: func() client.Object { return &rbacv1.RoleBinding{} },
			edit: func(o client.Object) { o.(*rbacv1.RoleBinding).Subjects = nil },
			fewer: func() runtime.ApplyConfiguration {
				return rbacv1ac.RoleBinding("r", ns).
					WithRoleRef(rbacv1ac.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("Role").WithName("r")).
					WithSubjects(rbacv1ac.Subject().WithKind("ServiceAccount").WithName("a").WithNamespace(ns))
			},
		},
		"StatefulSet": {
			desired: func() runtime.ApplyConfiguration {
				return appsv1ac.StatefulSet("s", ns).WithLabels(map[string]string{"l": "1"}).WithSpec(appsv1ac.StatefulSetSpec().WithReplicas(1).WithServiceName("s").
					WithSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{"a": "b"})).WithTemplate(podTemplate("--x", "--y")))
			},
			live: func() client.Object { return &appsv1.StatefulSet{} },
			edit: func(o client.Object) {
				s := o.(*appsv1.StatefulSet)
				s.Spec.Replicas = new(int32)
				s.Annotations = map[string]string{"theirs": "1"}
			},
			fewer: func() runtime.ApplyConfiguration {
				return appsv1ac.StatefulSet("s", ns).WithLabels(map[string]string{"l": "1"}).WithSpec(appsv1ac.StatefulSetSpec().WithReplicas(1).WithServiceName("s").
					WithSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{"a": "b"})).WithTemplate(podTemplate("--x")))
			},
		},
		"Service": {
			desired: func() runtime.ApplyConfiguration {
				return corev1ac.Service("svc", ns).WithSpec(corev1ac.ServiceSpec().WithClusterIP("None").WithPorts(
					corev1ac.ServicePort().WithName("dns-udp").WithPort(53).WithProtocol(corev1.ProtocolUDP).WithTargetPort(intstr.FromInt32(53)),
					corev1ac.ServicePort().WithName("dns-tcp").WithPort(53).WithProtocol(corev1.ProtocolTCP).WithTargetPort(intstr.FromInt32(53))))
			},
			live: func() client.Object { return &corev1.Service{} },
			edit: func(o client.Object) { s := o.(*corev1.Service); s.Spec.Ports[1].Name = "other" },
			fewer: func() runtime.ApplyConfiguration {
				return corev1ac.Service("svc", ns).WithSpec(corev1ac.ServiceSpec().WithClusterIP("None").WithPorts(
					corev1ac.ServicePort().WithName("dns-tcp").WithPort(53).WithProtocol(corev1.ProtocolTCP).WithTargetPort(intstr.FromInt32(53))))
			},
		},
		"EndpointSlice": {
			desired: func() runtime.ApplyConfiguration {
				return discoveryv1ac.EndpointSlice("e", ns).WithLabels(map[string]string{discoveryv1.LabelServiceName: "svc"}).WithAddressType(discoveryv1.AddressTypeIPv4).
					WithEndpoints(discoveryv1ac.Endpoint().WithAddresses("10.0.0.1").WithConditions(discoveryv1ac.EndpointConditions().WithReady(true))).
					WithPorts(discoveryv1ac.EndpointPort().WithName("p").WithPort(1).WithProtocol(corev1.ProtocolTCP))
			},
			live: func() client.Object { return &discoveryv1.EndpointSlice{} },
			edit: func(o client.Object) { o.(*discoveryv1.EndpointSlice).Endpoints = nil },
			fewer: func() runtime.ApplyConfiguration {
				return discoveryv1ac.EndpointSlice("e", ns).WithLabels(map[string]string{discoveryv1.LabelServiceName: "svc"}).WithAddressType(discoveryv1.AddressTypeIPv4)
			},
		},
		"EgressTarget": {
			desired: func() runtime.ApplyConfiguration {
				return v1alpha1ac.EgressTarget("t", ns).WithFinalizers(v1alpha1.Finalizer).WithSpec(v1alpha1ac.EgressTargetSpec().
					WithDestination(v1alpha1ac.Destination().WithFQDN("a.b")).WithTags("tag:b", "tag:a").WithPorts(
					v1alpha1ac.TargetPort().WithName("x").WithPort(1).WithProtocol(corev1.ProtocolTCP)))
			},
			live: func() client.Object { return &v1alpha1.EgressTarget{} },
			edit: func(o client.Object) { o.(*v1alpha1.EgressTarget).Spec.Destination.FQDN = "c.d" },
			fewer: func() runtime.ApplyConfiguration {
				return v1alpha1ac.EgressTarget("t", ns).WithSpec(v1alpha1ac.EgressTargetSpec().WithDestination(v1alpha1ac.Destination().WithFQDN("a.b")))
			},
		},
	}
}

// TestApply holds for every kind: the first apply writes, the second does not, an
// edit of ours is put back, what others added stays, and wanting less removes it.
func TestApply(t *testing.T) {
	server := envtestlab.Shared(t, envtestlab.Options{}).Client
	for name, tc := range cases() {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			applier := apply.Applier{Client: server, FieldOwner: "test"}
			must(t, applier, tc.desired(), nil, true)
			live := get(ctx, t, server, tc)
			must(t, applier, tc.desired(), live, false)

			edited := live.DeepCopyObject().(client.Object)
			tc.edit(edited)
			if err := server.Update(ctx, edited, client.FieldOwner("somebody")); err != nil {
				t.Fatal(err)
			}
			must(t, applier, tc.desired(), get(ctx, t, server, tc), true)
			must(t, applier, tc.desired(), get(ctx, t, server, tc), false)

			must(t, applier, tc.fewer(), get(ctx, t, server, tc), true)
			must(t, applier, tc.fewer(), get(ctx, t, server, tc), false)
			t.Cleanup(func() {
				o := get(context.Background(), t, server, tc)
				o.SetFinalizers(nil)
				_ = server.Update(context.Background(), o)
				_ = server.Delete(context.Background(), o)
			})
		})
	}
}

func TestApplyStatus(t *testing.T) {
	server := envtestlab.Shared(t, envtestlab.Options{}).Client
	ctx := t.Context()
	applier := apply.Applier{Client: server, FieldOwner: "test"}
	target := &v1alpha1.EgressTarget{ObjectMeta: metav1.ObjectMeta{Name: "status", Namespace: "default"},
		Spec: v1alpha1.EgressTargetSpec{Destination: v1alpha1.Destination{IP: "100.64.0.9"}}}
	if err := server.Create(ctx, target); err != nil {
		t.Fatal(err)
	}
	desired := func(message string) runtime.ApplyConfiguration {
		return v1alpha1ac.EgressTarget("status", "default").WithStatus(v1alpha1ac.EgressTargetStatus().WithReadyReplicas(0).
			WithDestinationIPs("100.64.0.9").WithConditions(metav1ac.Condition().WithType("Ready").WithStatus(metav1.ConditionFalse).
			WithReason("R").WithMessage(message).WithLastTransitionTime(metav1.Unix(1e9, 0)).WithObservedGeneration(1)))
	}
	for i, step := range []struct {
		message string
		changed bool
	}{{"", true}, {"", false}, {"m", true}, {"m", false}} {
		if err := server.Get(ctx, client.ObjectKeyFromObject(target), target); err != nil {
			t.Fatal(err)
		}
		changed, err := applier.ApplyStatus(ctx, desired(step.message), target)
		if err != nil || changed != step.changed {
			t.Errorf("step %d: changed %v, want %v: %v", i, changed, step.changed, err)
		}
	}
	if err := server.Delete(ctx, target); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, applier apply.Applier, desired runtime.ApplyConfiguration, live client.Object, want bool) {
	t.Helper()
	changed, err := applier.Apply(t.Context(), desired, live)
	if err != nil || changed != want {
		t.Fatalf("changed %v, want %v: %v", changed, want, err)
	}
}

func get(ctx context.Context, t *testing.T, server client.Client, tc testCase) client.Object {
	t.Helper()
	var named struct {
		Metadata struct{ Name string }
	}
	data, err := json.Marshal(tc.desired())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &named); err != nil {
		t.Fatal(err)
	}
	live := tc.live()
	if err := server.Get(ctx, client.ObjectKey{Namespace: "default", Name: named.Metadata.Name}, live); err != nil {
		t.Fatal(err)
	}
	return live
}

// TestSent holds that a cache which lags behind causes no second write, and that
// anything but a repetition is written.
func TestSent(t *testing.T) {
	server := envtestlab.Shared(t, envtestlab.Options{}).Client
	applier := apply.Applier{Client: server, FieldOwner: "test", Sent: &apply.Sent{}}
	desired := func(value string) runtime.ApplyConfiguration {
		return corev1ac.ConfigMap("sent", "default").WithData(map[string]string{"k": value})
	}
	observe := func() client.Object {
		live := &corev1.ConfigMap{}
		if err := server.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "sent"}, live); err != nil {
			t.Fatal(err)
		}
		return live
	}
	must(t, applier, desired("1"), nil, true)
	first := observe()
	must(t, applier, desired("2"), first, true)
	must(t, applier, desired("2"), first, false)
	must(t, applier, desired("3"), first, true)
	third := observe()
	must(t, applier, desired("3"), third, false)
	must(t, applier, desired("2"), third, true)

	// A write of somebody else comes between what was observed and what we write.
	before := observe()
	edited := before.DeepCopyObject().(client.Object)
	edited.SetAnnotations(map[string]string{"x": "y"})
	if err := server.Update(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	between := observe()
	must(t, applier, desired("4"), before, true)
	must(t, applier, desired("4"), between, false)
	must(t, applier, desired("4"), observe(), false)
	if err := server.Delete(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	must(t, applier, desired("2"), nil, true)
}

// TestBehind holds that every state older than our own write of the status is
// known to be, also one that somebody else wrote after what we had observed.
func TestBehind(t *testing.T) {
	server := envtestlab.Shared(t, envtestlab.Options{}).Client
	applier := apply.Applier{Client: server, FieldOwner: "test", Sent: &apply.Sent{}}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "behind"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "x.example"}}
	if err := server.Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Delete(context.Background(), service) })
	observed := service.DeepCopy()
	service.Annotations = map[string]string{"x": "y"}
	if err := server.Update(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	between := service.DeepCopy()
	desired := corev1ac.Service("behind", "default").WithStatus(corev1ac.ServiceStatus().WithConditions(metav1ac.Condition().
		WithType("A").WithStatus(metav1.ConditionTrue).WithReason("R").WithMessage("").WithLastTransitionTime(metav1.Unix(1, 0))))
	if changed, err := applier.ApplyStatus(t.Context(), desired, observed); err != nil || !changed {
		t.Fatal(changed, err)
	}
	if err := server.Get(t.Context(), client.ObjectKeyFromObject(service), service); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		live *corev1.Service
		want bool
	}{{"observed", observed, true}, {"between", between, true}, {"written", service, false}} {
		if got := applier.Behind(tc.live); got != tc.want {
			t.Errorf("%s: behind is %v, want %v", tc.name, got, tc.want)
		}
	}
}
