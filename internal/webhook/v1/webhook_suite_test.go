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
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/translate"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

func TestMain(m *testing.M) { os.Exit(envtestlab.Main(m)) }

var options = translate.Options{OperatorNamespace: "tailscale", ClusterDomain: "cluster.local"}

const fqdn = "db.tail1234.ts.net"

// admitter is an API server that calls the webhook, and a client of it that
// collects warnings.
type admitter struct {
	client.Client
	lab       *envtestlab.Lab
	namespace string
	warnings  *warnings
}

type warnings struct{ texts []string }

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { w.texts = append(w.texts, text) }

func (w *warnings) take() []string {
	texts := w.texts
	w.texts = nil
	return texts
}

func newAdmitter(t *testing.T) admitter {
	t.Helper()
	lab := envtestlab.Shared(t, envtestlab.Options{Webhooks: true})
	lab.Manager(t, func(mgr manager.Manager) error { return SetupServiceWebhookWithManager(mgr, options) })
	config := rest.CopyConfig(lab.Config)
	collected := &warnings{}
	config.WarningHandler = collected
	c, err := client.New(config, client.Options{Scheme: lab.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return admitter{Client: c, lab: lab, namespace: lab.Namespace(t), warnings: collected}
}

// service is a good one, for a test to spoil.
func (a admitter) service(name string, edits ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: a.namespace,
			Annotations: map[string]string{v1alpha1.AnnotationTailnetFQDN: fqdn},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "placeholder"},
	}
	for _, edit := range edits {
		edit(svc)
	}
	return svc
}

// annotate replaces the annotations: key, value, key, value.
func annotate(pairs ...string) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Annotations = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			svc.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func ports(ports ...corev1.ServicePort) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Spec.Ports = ports }
}

func (a admitter) mustCreate(t *testing.T, object client.Object) {
	t.Helper()
	if err := a.Create(t.Context(), object); err != nil {
		t.Fatalf("create %s: %v", object.GetName(), err)
	}
}

func (a admitter) mustUpdate(t *testing.T, object client.Object) {
	t.Helper()
	if err := a.Update(t.Context(), object); err != nil {
		t.Fatalf("update %s: %v", object.GetName(), err)
	}
}

func (a admitter) targets(t *testing.T) []v1alpha1.EgressTarget {
	t.Helper()
	list := &v1alpha1.EgressTargetList{}
	if err := a.List(t.Context(), list, client.InNamespace(a.namespace)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}
