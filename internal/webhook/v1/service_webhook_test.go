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
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/internal/translate"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

func TestBadServicesAreRefused(t *testing.T) {
	a := newAdmitter(t)
	group := []string{v1alpha1.AnnotationTailnetFQDN, fqdn, v1alpha1.AnnotationProxyGroup, "egress"}
	for _, tc := range []struct {
		name string
		edit func(*corev1.Service)
		want string
	}{
		{"fqdn-and-ip", annotate(v1alpha1.AnnotationTailnetFQDN, fqdn, v1alpha1.AnnotationTailnetIP, "100.64.0.9"),
			"only one of annotations tailscale.com/tailnet-ip and tailscale.com/tailnet-fqdn can be set"},
		{"two-ip-spellings", annotate(v1alpha1.AnnotationTailnetTargetIP, "100.64.0.9", v1alpha1.AnnotationDeprecatedTargetIP, "100.64.0.9"),
			"only one of annotations tailscale.com/tailnet-target-ip and tailscale.com/ts-tailnet-target-ip can be set"},
		{"fqdn-words", annotate(v1alpha1.AnnotationTailnetFQDN, "my db"),
			`invalid value of annotation tailscale.com/tailnet-fqdn: "my db" does not appear to be a valid MagicDNS name`},
		{"fqdn-one-label", annotate(v1alpha1.AnnotationTailnetFQDN, "db"),
			`invalid value of annotation tailscale.com/tailnet-fqdn: "db" does not appear to be a valid MagicDNS name`},
		{"fqdn-empty", annotate(v1alpha1.AnnotationTailnetFQDN, ""),
			`invalid value of annotation tailscale.com/tailnet-fqdn: "" does not appear to be a valid MagicDNS name`},
		{"fqdn-long", annotate(v1alpha1.AnnotationTailnetFQDN, strings.Repeat("a.", 150)+"b"), "it has 301 characters, at most 253 are allowed"},
		{"ip-number", annotate(v1alpha1.AnnotationTailnetIP, "100.64.0.256"),
			`invalid value of annotation tailscale.com/tailnet-ip: "100.64.0.256" could not be parsed as a valid IP Address, error: `},
		{"ip-zone", annotate(v1alpha1.AnnotationTailnetTargetIP, "fe80::1%eth0"),
			`invalid value of annotation tailscale.com/tailnet-target-ip: "fe80::1%eth0" could not be parsed as a valid IP Address, error: `},
		{"ip-loopback", annotate(v1alpha1.AnnotationTailnetIP, "127.0.0.1"),
			`invalid value of annotation tailscale.com/tailnet-ip: "127.0.0.1" is a loopback address`},
		{"ip-multicast", annotate(v1alpha1.AnnotationTailnetIP, "224.0.0.1"), `"224.0.0.1" is a multicast address`},
		{"ip-unspecified", annotate(v1alpha1.AnnotationTailnetIP, "::"), `"::" is the unspecified address`},
		{"ip-link-local", annotate(v1alpha1.AnnotationTailnetIP, "169.254.169.254"), `"169.254.169.254" is a link-local address`},
		{"group-empty", annotate(v1alpha1.AnnotationTailnetFQDN, fqdn, v1alpha1.AnnotationProxyGroup, ""),
			"invalid value of annotation tailscale.com/proxy-group: it is empty"},
		{"group-name", annotate(v1alpha1.AnnotationTailnetFQDN, fqdn, v1alpha1.AnnotationProxyGroup, "Egress!"), `"Egress!" is not the name of a ProxyGroup`},
		{"group-no-target", annotate(v1alpha1.AnnotationTailnetIP, "", v1alpha1.AnnotationProxyGroup, "egress"),
			"egress Service for ProxyGroup must have one of tailscale.com/tailnet-fqdn, tailscale.com/tailnet-ip annotations set"},
		{"group-no-ports", annotate(group...), "egress Service for ProxyGroup must have at least one target Port specified"},
		{"hostname", annotate(v1alpha1.AnnotationTailnetFQDN, fqdn, v1alpha1.AnnotationHostname, "my_db"), `invalid Tailscale hostname specified "my_db": `},
		{"tag", annotate(v1alpha1.AnnotationTailnetFQDN, fqdn, v1alpha1.AnnotationTags, "tag:k8s, db"), `invalid tag "db": tags must start with 'tag:'`},
		{"class", annotate(v1alpha1.AnnotationTailnetFQDN, fqdn, v1alpha1.AnnotationProxyClass, "Prod_1"), `"Prod_1" is not the name of a ProxyClass`},
		{"sctp", ports(corev1.ServicePort{Port: 5000, Protocol: corev1.ProtocolSCTP}), `spec.ports[0].protocol: "SCTP" is not supported: use TCP or UDP`},
		{"health-port", ports(corev1.ServicePort{Port: v1alpha1.ProxyHealthPort}), "spec.ports[0].port: 9002/TCP is used by a standalone proxy itself"},
		{"many-ports", manyPorts, "spec.ports has 513 ports, at most 512 are allowed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := a.service(tc.name, tc.edit)
			err := a.Create(t.Context(), svc)
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err := a.Get(t.Context(), client.ObjectKeyFromObject(svc), svc); !apierrors.IsNotFound(err) {
				t.Errorf("the Service was stored: %v", err)
			}
		})
	}
	if targets := a.targets(t); len(targets) > 0 {
		t.Errorf("refused Services left %d EgressTargets", len(targets))
	}
}

func manyPorts(svc *corev1.Service) {
	for i := range int32(513) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "p" + strconv.Itoa(int(i)), Port: i + 1})
	}
}

func TestExternalNameIsStamped(t *testing.T) {
	a := newAdmitter(t)
	for _, tc := range []struct {
		name, externalName string
	}{
		{"placeholder", "placeholder"},
		{"none", ""},
		{"1-digit", "placeholder"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := a.service(tc.name, func(svc *corev1.Service) { svc.Spec.ExternalName = tc.externalName })
			a.mustCreate(t, svc)
			if want := names.Child(a.namespace, tc.name) + ".tailscale.svc.cluster.local"; svc.Spec.ExternalName != want {
				t.Errorf("externalName = %q, want %q", svc.Spec.ExternalName, want)
			}
		})
	}
	if targets := a.targets(t); len(targets) > 0 {
		t.Errorf("admission made %d EgressTargets: it has to be free of side effects", len(targets))
	}
}

func TestGeneratedNameIsAdmitted(t *testing.T) {
	a := newAdmitter(t)
	svc := a.service("", func(svc *corev1.Service) { svc.GenerateName = "db-" })
	a.mustCreate(t, svc)
	a.mustUpdate(t, svc)
	if want := names.Child(a.namespace, svc.Name) + ".tailscale.svc.cluster.local"; svc.Spec.ExternalName != want {
		t.Errorf("externalName = %q, want %q after the first update", svc.Spec.ExternalName, want)
	}
}

func TestWarnings(t *testing.T) {
	a := newAdmitter(t)
	for _, tc := range []struct {
		name string
		edit func(*corev1.Service)
		want string
	}{
		{"deprecated", annotate(v1alpha1.AnnotationDeprecatedTargetIP, "100.64.0.9"),
			"annotation tailscale.com/ts-tailnet-target-ip is deprecated: use tailscale.com/tailnet-target-ip"},
		{"other-type", func(svc *corev1.Service) {
			svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}}
		}, "unexpected egress Service type NodePort. The only supported type is ExternalName."},
		{"tags", annotate(v1alpha1.AnnotationTailnetFQDN, "db.tail1234.ts.net", v1alpha1.AnnotationTags, "tag:db"),
			"tailscale.com/tags has no effect: a device has the tags of the auth key that it logs in with"},
		{"ignored", func(svc *corev1.Service) {
			svc.Annotations[v1alpha1.AnnotationProxyGroup] = "not-there-yet"
			svc.Annotations[v1alpha1.AnnotationHostname] = "db"
			svc.Spec.Ports = []corev1.ServicePort{{Port: 80}}
		}, "tailscale.com/hostname is ignored beside tailscale.com/proxy-group: set hostnamePrefix on the ProxyGroup"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a.warnings.take()
			a.mustCreate(t, a.service(tc.name, tc.edit))
			if got := a.warnings.take(); !slices.Contains(got, tc.want) {
				t.Errorf("warnings = %q, want %q", got, tc.want)
			}
		})
	}
}

// A Service without a target key costs no call of the webhook.
func TestOtherServicesDoNotReachTheWebhook(t *testing.T) {
	a := newAdmitter(t)
	before := webhookCalls(t)
	svc := a.service("other", annotate(v1alpha1.AnnotationProxyGroup, "egress", v1alpha1.AnnotationHostname, "my_db"))
	a.mustCreate(t, svc)
	svc.Labels = map[string]string{"a": "b"}
	a.mustUpdate(t, svc)
	a.mustCreate(t, a.service("no-annotations", func(svc *corev1.Service) { svc.Annotations = nil }))
	if svc.Spec.ExternalName != "placeholder" {
		t.Errorf("externalName = %q was changed", svc.Spec.ExternalName)
	}
	if calls := webhookCalls(t) - before; calls != 0 {
		t.Errorf("%v calls of the webhook", calls)
	}
	a.mustCreate(t, a.service("ours"))
	if calls := webhookCalls(t) - before; calls < 2 {
		t.Errorf("%v calls of the webhook for a Service of ours, want one to default and one to validate", calls)
	}
}

func webhookCalls(t *testing.T) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	calls := 0.0
	for _, family := range families {
		if family.GetName() != "controller_runtime_webhook_requests_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			calls += metric.GetCounter().GetValue()
		}
	}
	return calls
}

// The marker cannot refer to translate.TargetKeys.
func TestMatchConditionsNameEveryTargetKey(t *testing.T) {
	manifests, err := os.ReadFile("../../../config/webhook/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range translate.TargetKeys {
		if got := strings.Count(string(manifests), "'"+key+"'"); got != 2 {
			t.Errorf("%s is in %d match conditions, want 2", key, got)
		}
	}
}

func TestUpdates(t *testing.T) {
	a := newAdmitter(t)
	svc := a.service("db")
	a.mustCreate(t, svc)

	svc.Annotations[v1alpha1.AnnotationTailnetFQDN] = "bad"
	if err := a.Update(t.Context(), svc); !apierrors.IsInvalid(err) {
		t.Errorf("an update to a bad name: %v", err)
	}
	svc.Annotations = nil
	svc.Spec.ExternalName = "example.com"
	a.mustUpdate(t, svc)
	if svc.Spec.ExternalName != "example.com" {
		t.Errorf("externalName = %q of a Service that is no longer ours", svc.Spec.ExternalName)
	}
}

// Who edits a label, or deletes, cannot help what was stored before.
func TestUnchangedTranslationIsNotRefused(t *testing.T) {
	a := newAdmitter(t)
	svc := a.service("db", func(svc *corev1.Service) { svc.Finalizers = []string{"example.com/held"} })
	a.mustCreate(t, svc)
	a.storeUnchecked(t, svc, func(svc *corev1.Service) { svc.Annotations[v1alpha1.AnnotationTailnetFQDN] = "bad" })

	svc.Labels = map[string]string{"team": "a"}
	a.warnings.take()
	a.mustUpdate(t, svc)
	if got := a.warnings.take(); len(got) != 1 || !strings.Contains(got[0], `"bad" does not appear to be a valid MagicDNS name`) {
		t.Errorf("warnings = %q", got)
	}
	svc.Spec.Ports = []corev1.ServicePort{{Port: 9002}}
	if err := a.Update(t.Context(), svc); !apierrors.IsInvalid(err) {
		t.Errorf("an update that makes it worse: %v", err)
	}
	if err := a.Delete(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	if err := a.Get(t.Context(), client.ObjectKeyFromObject(svc), svc); err != nil {
		t.Fatal(err)
	}
	svc.Annotations[v1alpha1.AnnotationTailnetIP] = "worse"
	svc.Finalizers = nil
	a.mustUpdate(t, svc)
}

// storeUnchecked edits a Service as if the webhook were down.
func (a admitter) storeUnchecked(t *testing.T, svc *corev1.Service, edit func(*corev1.Service)) {
	t.Helper()
	hooks := &admissionregistrationv1.ValidatingWebhookConfigurationList{}
	if err := a.List(t.Context(), hooks); err != nil || len(hooks.Items) != 1 {
		t.Fatalf("%d validating webhooks: %v", len(hooks.Items), err)
	}
	hook := &hooks.Items[0]
	original := hook.Webhooks[0].Rules[0].Operations
	hook.Webhooks[0].Rules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Connect}
	a.mustUpdate(t, hook)
	edit(svc)
	// A change of the registration takes a moment to be known.
	envtestlab.Eventually(t, waitTime, func() error { return a.Update(t.Context(), svc) })
	hook.Webhooks[0].Rules[0].Operations = original
	a.mustUpdate(t, hook)
	envtestlab.Eventually(t, waitTime, func() error {
		probe := a.service("probe", annotate(v1alpha1.AnnotationTailnetIP, "bad"))
		if err := a.Create(t.Context(), probe, client.DryRunAll); err == nil {
			return errors.New("the webhook is not called yet")
		}
		return nil
	})
}
