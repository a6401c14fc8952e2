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

package translate

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite testdata/*.out.yaml")

var options = Options{OperatorNamespace: "tailscale", ClusterDomain: "cluster.local"}

// golden is what a *.out.yaml file holds.
type golden struct {
	Target       json.RawMessage `json:"target,omitempty"`
	ExternalName string          `json:"externalName,omitempty"`
	Warnings     []string        `json:"warnings,omitempty"`
	Refused      []string        `json:"refused,omitempty"`
}

func TestGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no inputs in testdata: %v", err)
	}
	for _, input := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(input), ".in.yaml"), func(t *testing.T) {
			got := translated(t, read(t, input))
			output := strings.TrimSuffix(input, ".in.yaml") + ".out.yaml"
			if *update {
				if err := os.WriteFile(output, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want := read(t, output)
			if !bytes.Equal(got, want) {
				t.Errorf("%s (run with -update to accept)\ngot:\n%s\nwant:\n%s", output, got, want)
			}
		})
	}
}

func translated(t *testing.T, input []byte) []byte {
	t.Helper()
	svc := &corev1.Service{}
	if err := yaml.UnmarshalStrict(input, svc); err != nil {
		t.Fatal(err)
	}
	result, errs := Service(svc, options)
	var out golden
	for _, err := range errs {
		out.Refused = append(out.Refused, err.Field+" | "+err.Detail)
	}
	if result != nil {
		target, err := json.Marshal(result.Target)
		if err != nil {
			t.Fatal(err)
		}
		out = golden{Target: target, ExternalName: result.ExternalName, Warnings: result.Warnings, Refused: out.Refused}
	}
	data, err := yaml.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestOurs(t *testing.T) {
	withKey := map[string]string{v1alpha1.AnnotationTailnetFQDN: "db.tail1.ts.net"}
	for _, tc := range []struct {
		name        string
		serviceType corev1.ServiceType
		annotations map[string]string
		ours        bool
		unexpected  string
	}{
		{"an ExternalName Service with a target key", corev1.ServiceTypeExternalName, withKey, true, ""},
		{"an empty target key", corev1.ServiceTypeExternalName, map[string]string{v1alpha1.AnnotationTailnetIP: ""}, true, ""},
		{"no annotations", corev1.ServiceTypeExternalName, nil, false, ""},
		{"only a ProxyGroup", corev1.ServiceTypeExternalName, map[string]string{v1alpha1.AnnotationProxyGroup: "pg"}, false, ""},
		{"another type without a key", corev1.ServiceTypeLoadBalancer, map[string]string{v1alpha1.AnnotationHostname: "db"}, false, ""},
		{"another type with a key", corev1.ServiceTypeLoadBalancer, withKey, false,
			"unexpected egress Service type LoadBalancer. The only supported type is ExternalName."},
		{"the default type with a key", "", withKey, false,
			"unexpected egress Service type ClusterIP. The only supported type is ExternalName."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "app", Annotations: tc.annotations},
				Spec:       corev1.ServiceSpec{Type: tc.serviceType},
			}
			if got := Ours(svc); got != tc.ours {
				t.Errorf("Ours = %v, want %v", got, tc.ours)
			}
			if got := UnexpectedType(svc); got != tc.unexpected {
				t.Errorf("UnexpectedType = %q, want %q", got, tc.unexpected)
			}
		})
	}
}

func TestMessageIsBounded(t *testing.T) {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "app", Annotations: map[string]string{
			v1alpha1.AnnotationTailnetFQDN: strings.Repeat("a", 200_000),
			v1alpha1.AnnotationTags:        strings.Repeat("x,", 20_000),
		}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName},
	}
	_, errs := Service(svc, options)
	// 1,024 characters is what the note of an event may hold.
	if message := Message(errs); len(message) > 1024 || !strings.HasSuffix(message, "; and more") {
		t.Errorf("a message of %d characters: %.100s…", len(message), message)
	}
}

func FuzzService(f *testing.F) {
	f.Add("db.tail1.ts.net.", "", "", "", "", "", "", "pg", int32(5432), int32(0), "", "TCP")
	f.Add("", "100.64.0.9", "", "", "", "app-db", "tag:k8s, tag:db", "", int32(53), int32(5353), "", "UDP")
	f.Add("", "", "::ffff:100.64.0.9", "", "prod", "", "", "", int32(9002), int32(0), "http", "TCP")
	f.Add("", "", "", "fe80::1%eth0", "", "", "", "", int32(0), int32(-1), "", "SCTP")
	f.Fuzz(func(t *testing.T, fqdn, ip, targetIP, deprecatedIP, class, hostname, tags, group string,
		port, targetPort int32, targetPortName, protocol string) {
		annotations := map[string]string{}
		for key, value := range map[string]string{
			v1alpha1.AnnotationTailnetFQDN: fqdn, v1alpha1.AnnotationTailnetIP: ip,
			v1alpha1.AnnotationTailnetTargetIP: targetIP, v1alpha1.AnnotationDeprecatedTargetIP: deprecatedIP,
			v1alpha1.AnnotationProxyClass: class, v1alpha1.AnnotationHostname: hostname,
			v1alpha1.AnnotationTags: tags, v1alpha1.AnnotationProxyGroup: group,
		} {
			if value != "" {
				annotations[key] = value
			}
		}
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "app", UID: "1", Annotations: annotations},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, Ports: []corev1.ServicePort{
				{Port: port, TargetPort: targetPortOf(targetPort, targetPortName), Protocol: corev1.Protocol(protocol)},
			}},
		}
		if !Ours(svc) {
			t.Skip("no target key")
		}
		checkInvariants(t, svc)
	})
}

// checkInvariants holds for every Service: a result or errors but not both, the
// same answer twice, exactly one destination, and stable once translated.
func checkInvariants(t *testing.T, svc *corev1.Service) {
	t.Helper()
	before := svc.DeepCopy()
	result, errs := Service(svc, options)
	if (result == nil) != (len(errs) > 0) {
		t.Fatalf("result %v with errors %v", result, errs)
	}
	again, errsAgain := Service(svc, options)
	if a, b := encode(t, result), encode(t, again); a != b || Message(errs) != Message(errsAgain) {
		t.Fatalf("two answers:\n%s\n%s", a, b)
	}
	if a, b := encode(t, before), encode(t, svc); a != b {
		t.Fatalf("the input was changed:\n%s\n%s", a, b)
	}
	for _, err := range errs {
		if err.Detail == "" || len(err.Detail) > 1200 {
			t.Errorf("not a sentence: %q", err.Detail)
		}
	}
	if result == nil {
		return
	}
	destination := result.Target.Spec.Destination
	if (destination.FQDN == nil) == (destination.IP == nil) {
		t.Errorf("not exactly one destination: %s", encode(t, destination))
	}
	normal := svc.DeepCopy()
	for _, key := range TargetKeys {
		delete(normal.Annotations, key)
	}
	if destination.FQDN != nil {
		normal.Annotations[v1alpha1.AnnotationTailnetFQDN] = *destination.FQDN
	} else {
		normal.Annotations[v1alpha1.AnnotationTailnetTargetIP] = *destination.IP
	}
	normalised, errs := Service(normal, options)
	if len(errs) > 0 || encode(t, normalised.Target) != encode(t, result.Target) {
		t.Errorf("its own output is translated otherwise: %v\n%s", errs, encode(t, result.Target))
	}
}

func encode(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func targetPortOf(number int32, name string) intstr.IntOrString {
	if name != "" {
		return intstr.FromString(name)
	}
	return intstr.FromInt32(number)
}
