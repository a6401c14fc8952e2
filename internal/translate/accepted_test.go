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

package translate_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/translate"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

func TestMain(m *testing.M) { os.Exit(envtestlab.Main(m)) }

var options = translate.Options{OperatorNamespace: "tailscale", ClusterDomain: "cluster.local"}

// Each list has what is right, what is wrong, and what is on the border.
var (
	destinations = []string{
		"db.tail1234.ts.net", "DB.Tail.ts.net.", "a.b", "1.2.3.4a", "1.2.3.4", "-a.b", "a-.b", "a..b", "a.b..", ".a.b", "a_b.c", "xn--a.b", "*.a.b",
		strings.Repeat("a.", 126) + "b", strings.Repeat("a.", 126) + "b.", strings.Repeat("a.", 126) + "bb", strings.Repeat("a", 63) + ".b", strings.Repeat("a", 64) + ".b",
		"100.64.0.9", "fd7a:115c:a1e0::9", "FD7A:115C:A1E0:0000:0:0:0:9", "::ffff:100.64.0.9", "::ffff:127.0.0.1", "::ffff:0:1", "64:ff9b::1.2.3.4", "fe80::1", "fe80::1%eth0",
		"127.0.0.1", "::1", "::", "0.0.0.0", "0.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "169.254.0.1", "010.0.0.1", "1.2.3", "10.0.0.0/8", " 10.0.0.1", "",
	}
	hostnames = []string{"db", "App-DB", "1", "-a", "a-", "a.b", "a_b", strings.Repeat("a", 63), strings.Repeat("a", 64), "", "ü"}
	tagLists  = []string{"tag:a", "tag:A-1, tag:b", "tag:a,tag:a", "tag:", "tag:1", "k8s", "tag:a,", "tag:" + strings.Repeat("a", 59), "tag:" + strings.Repeat("a", 60), "tag:a b", "tag:ä"}
	classes   = []string{"prod", "prod.example", "Prod", "-a", "a..b", strings.Repeat("a", 63), strings.Repeat("a.", 126) + "b", strings.Repeat("a.", 127) + "b", ""}
	groups    = []string{"egress", "1", "a.b", "Egress", strings.Repeat("a", 63), strings.Repeat("a", 64), ""}
	portNames = []string{"", "a", "b", "a-b", "A", "a--b", "-a", "1", strings.Repeat("a", 63), strings.Repeat("a", 64)}
	numbers   = []int32{-1, 0, 1, 53, 53, 9002, 41641, 65535, 65536}
	protocols = []corev1.Protocol{"", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	services  = []string{"db", "1db", "a-b", strings.Repeat("a", 63)}
)

// What is translated, the API server takes: every rule of the CRD is one of the
// translation too, where it has a better text.
func TestTranslationsAreAccepted(t *testing.T) {
	lab := envtestlab.Shared(t, envtestlab.Options{})
	namespace := lab.Namespace(t)
	random := rand.New(rand.NewPCG(1, 2))
	accepted, refused := 0, 0
	try := func(svc *corev1.Service) {
		t.Helper()
		if !translate.Ours(svc) {
			return
		}
		result, errs := translate.Service(svc, options)
		if len(errs) > 0 {
			refused++
			return
		}
		accepted++
		err := lab.Client.Apply(t.Context(), result.Target, client.DryRunAll, client.FieldOwner(translate.FieldOwner), client.ForceOwnership)
		if err != nil {
			t.Errorf("annotations %q, labels %q, ports %v: %v", svc.Annotations, svc.Labels, svc.Spec.Ports, err)
		}
	}
	for _, destination := range destinations {
		for _, key := range translate.TargetKeys {
			try(service(namespace, "db", map[string]string{key: destination}))
		}
	}
	for range 3000 {
		try(randomService(random, namespace))
	}
	t.Logf("%d Services were translated and %d refused", accepted, refused)
	if accepted < 300 || refused < 300 {
		t.Errorf("%d accepted and %d refused Services say too little", accepted, refused)
	}
}

func service(namespace, name string, annotations map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: "1", Annotations: annotations},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName},
	}
}

// randomService has one good destination and at most a few other things, so that
// a fair part of them is right as a whole.
func randomService(random *rand.Rand, namespace string) *corev1.Service {
	svc := service(namespace, pick(random, services), map[string]string{v1alpha1.AnnotationTailnetFQDN: "db.tail1234.ts.net"})
	maybe := func(key string, values []string) {
		if random.IntN(4) == 0 {
			svc.Annotations[key] = pick(random, values)
		}
	}
	maybe(v1alpha1.AnnotationHostname, hostnames)
	maybe(v1alpha1.AnnotationTags, tagLists)
	maybe(v1alpha1.AnnotationProxyClass, classes)
	maybe(v1alpha1.AnnotationProxyGroup, groups)
	if random.IntN(8) == 0 {
		svc.Labels = map[string]string{v1alpha1.AnnotationProxyClass: pick(random, classes)}
	}
	for range random.IntN(4) {
		port := corev1.ServicePort{
			Name: pick(random, portNames), Port: pick(random, numbers), Protocol: pick(random, protocols), TargetPort: intstr.FromInt32(pick(random, numbers)),
		}
		if random.IntN(8) == 0 {
			port.TargetPort = intstr.FromString("http")
		}
		svc.Spec.Ports = append(svc.Spec.Ports, port)
	}
	return svc
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

func TestMostPortsAreAccepted(t *testing.T) {
	lab := envtestlab.Shared(t, envtestlab.Options{})
	svc := service(lab.Namespace(t), "db", map[string]string{v1alpha1.AnnotationTailnetIP: "100.64.0.9"})
	for i := range int32(512) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("%063d", i), Port: i + 1})
	}
	result, errs := translate.Service(svc, options)
	if len(errs) > 0 {
		t.Fatal(translate.Message(errs))
	}
	if err := lab.Client.Apply(t.Context(), result.Target, client.DryRunAll, client.FieldOwner(translate.FieldOwner), client.ForceOwnership); err != nil {
		t.Error(err)
	}
}
