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

package v1

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

const waitTime = 10 * time.Second

func TestForeignEgressTargetIsNotTakenOver(t *testing.T) {
	a := newAdmitter(t)
	foreign := &v1alpha1.EgressTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: a.namespace},
		Spec:       v1alpha1.EgressTargetSpec{Destination: v1alpha1.Destination{IP: "100.64.0.9"}},
	}
	a.mustCreate(t, foreign)
	err := a.Create(t.Context(), a.service("db"))
	want := "EgressTarget " + a.namespace + "/db exists and was not made for this Service: delete it, or give the Service another name"
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}

	// One that a Service of that name left behind is not in the way: it is about to
	// be collected.
	a.mustCreate(t, &v1alpha1.EgressTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "again", Namespace: a.namespace, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Service", Name: "again", UID: "gone", Controller: new(true)},
		}},
		Spec: v1alpha1.EgressTargetSpec{Destination: v1alpha1.Destination{IP: "100.64.0.9"}},
	})
	a.mustCreate(t, a.service("again"))
}

func TestPolicyOnEgressTargetsJudgesTheService(t *testing.T) {
	a := newAdmitter(t)
	deny(t, a, "no-internal", admissionregistrationv1.Rule{
		APIGroups: []string{"tailscale.com"}, APIVersions: []string{"*"}, Resources: []string{"egresstargets"},
	}, "!object.spec.destination.fqdn.startsWith('internal')", "internal hosts are off limits")
	envtestlab.Eventually(t, waitTime, func() error {
		svc := a.service("probe", annotate(v1alpha1.AnnotationTailnetFQDN, "internal.tail1234.ts.net"))
		err := a.Create(t.Context(), svc, client.DryRunAll)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "the EgressTarget for this Service is refused: ") ||
			!strings.Contains(err.Error(), "internal hosts are off limits") {
			return errors.Join(errors.New("not refused as the policy says"), err)
		}
		return nil
	})
	a.mustCreate(t, a.service("db"))
	if targets := a.targets(t); len(targets) > 0 {
		t.Errorf("a dry run left %d EgressTargets", len(targets))
	}
}

// deny makes a policy for one namespace that ends with the test.
func deny(t *testing.T, a admitter, name string, rule admissionregistrationv1.Rule, expression, message string) {
	t.Helper()
	all := admissionregistrationv1.OperationAll
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{all}, Rule: rule,
				},
			}}},
			Validations: []admissionregistrationv1.Validation{{Expression: expression, Message: message}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        name,
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			MatchResources: &admissionregistrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: a.namespace},
			}},
		},
	}
	a.mustCreate(t, policy)
	a.mustCreate(t, binding)
	t.Cleanup(func() {
		if err := errors.Join(a.Delete(context.Background(), binding), a.Delete(context.Background(), policy)); err != nil {
			t.Error(err)
		}
	})
}

// Only a judgement refuses a Service.
func TestAnswersToTheDryRun(t *testing.T) {
	targets := schema.GroupResource{Group: "tailscale.com", Resource: "egresstargets"}
	kind := schema.GroupKind{Group: "tailscale.com", Kind: "EgressTarget"}
	for _, tc := range []struct {
		name     string
		get, err error
		refused  bool
	}{
		{"taken", nil, nil, false},
		{"invalid", nil, apierrors.NewInvalid(kind, "db", field.ErrorList{}), true},
		{"forbidden", nil, apierrors.NewForbidden(targets, "db", errors.New("a policy")), true},
		{"conflict", nil, apierrors.NewConflict(targets, "db", errors.New("another UID")), true},
		{"unreachable", nil, errors.New("dial tcp: connection refused"), false},
		{"time-out", nil, context.DeadlineExceeded, false},
		{"overloaded", nil, apierrors.NewTooManyRequestsError("later"), false},
		{"internal", nil, apierrors.NewInternalError(errors.New("etcd")), false},
		{"no CRD", &meta.NoKindMatchError{GroupKind: kind}, nil, false},
		{"unreachable when reading", errors.New("dial tcp: connection refused"), apierrors.NewInvalid(kind, "db", field.ErrorList{}), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					if tc.get != nil {
						return tc.get
					}
					return apierrors.NewNotFound(targets, "db")
				},
				Apply: func(_ context.Context, _ client.WithWatch, _ runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
					applied := (&client.ApplyOptions{}).ApplyOptions(opts)
					if len(applied.DryRun) != 1 {
						t.Error("not a dry run")
					}
					return tc.err
				},
			}).Build()
			validator := ServiceValidator{Options: options, Reader: c, Client: c}
			_, err := validator.ValidateCreate(t.Context(), admitter{namespace: "app"}.service("db"))
			if refused := err != nil; refused != tc.refused {
				t.Errorf("got %v, refused should be %v", err, tc.refused)
			}
		})
	}
}
