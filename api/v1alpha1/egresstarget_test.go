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

package v1alpha1_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

func TestMain(m *testing.M) { os.Exit(envtestlab.Main(m)) }

func lab(t *testing.T) *envtestlab.Lab { return envtestlab.Shared(t, envtestlab.Options{}) }

// target is a good one, for a test to mutate.
func target(namespace string, mutate func(*v1alpha1.EgressTarget)) *v1alpha1.EgressTarget {
	target := &v1alpha1.EgressTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: namespace},
		Spec:       v1alpha1.EgressTargetSpec{Destination: v1alpha1.Destination{FQDN: "db.tail1234.ts.net"}},
	}
	if mutate != nil {
		mutate(target)
	}
	return target
}

func fqdn(name string) func(*v1alpha1.EgressTarget) {
	return func(t *v1alpha1.EgressTarget) { t.Spec.Destination = v1alpha1.Destination{FQDN: name} }
}

func ip(address string) func(*v1alpha1.EgressTarget) {
	return func(t *v1alpha1.EgressTarget) { t.Spec.Destination = v1alpha1.Destination{IP: address} }
}

func ports(ports ...v1alpha1.TargetPort) func(*v1alpha1.EgressTarget) {
	return func(t *v1alpha1.EgressTarget) { t.Spec.Ports = ports }
}

// grouped is a target of a ProxyGroup with one port, and then as more says.
func grouped(more func(*v1alpha1.EgressTarget)) func(*v1alpha1.EgressTarget) {
	return func(t *v1alpha1.EgressTarget) {
		t.Spec.ProxyGroup = "egress"
		t.Spec.Ports = []v1alpha1.TargetPort{{Port: 5432}}
		if more != nil {
			more(t)
		}
	}
}

func spec(edit func(*v1alpha1.EgressTargetSpec)) func(*v1alpha1.EgressTarget) {
	return func(t *v1alpha1.EgressTarget) { edit(&t.Spec) }
}

// manyPorts are n of the longest names.
func manyPorts(n int) []v1alpha1.TargetPort {
	out := make([]v1alpha1.TargetPort, 0, n)
	for i := range n {
		out = append(out, v1alpha1.TargetPort{Name: fmt.Sprintf("%063d", i), Port: int32(i + 1)})
	}
	return out
}

// maxPorts is spec.ports' limit, which internal/translate states too.
const maxPorts = 512

func TestGoodTargets(t *testing.T) {
	l := lab(t)
	namespace := l.Namespace(t)
	for _, tc := range []struct {
		name   string
		mutate func(*v1alpha1.EgressTarget)
	}{
		{"a name", nil},
		{"a name in capitals with a trailing dot", fqdn("DB.Tail1234.TS.net.")},
		{"a name of another domain", fqdn("db.internal.example")},
		{"the longest name", fqdn(strings.Repeat("a.", 126) + "b")},
		{"the longest name with a trailing dot", fqdn(strings.Repeat("a.", 126) + "b.")},
		{"IPv4", ip("100.64.0.9")},
		{"IPv6", ip("fd7a:115c:a1e0::9")},
		{"an address behind a subnet router", ip("10.20.0.7")},
		{"one unnamed port", ports(v1alpha1.TargetPort{Port: 5432})},
		{"one number for two protocols", ports(
			v1alpha1.TargetPort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, v1alpha1.TargetPort{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP})},
		{"a reserved number at the target", ports(v1alpha1.TargetPort{Port: 19002, TargetPort: 9002})},
		{"a reserved number of the other protocol", ports(
			v1alpha1.TargetPort{Name: "a", Port: 9002, Protocol: corev1.ProtocolUDP}, v1alpha1.TargetPort{Name: "b", Port: 41641, Protocol: corev1.ProtocolTCP})},
		{"as many ports as are allowed", ports(manyPorts(maxPorts)...)},
		{"a ProxyGroup", grouped(nil)},
		{"a reserved port with a ProxyGroup", grouped(ports(v1alpha1.TargetPort{Port: 9002}))},
		{"all of a standalone target", spec(func(s *v1alpha1.EgressTargetSpec) {
			s.ProxyClass, s.Hostname, s.ServiceName = "prod.example", "app-db", "database"
			s.Tags = []v1alpha1.Tag{"tag:k8s", "tag:A-1"}
		})},
		{"a name that is no Service name, with serviceName", func(t *v1alpha1.EgressTarget) {
			t.Name, t.Spec.ServiceName = "1.db", "db"
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := l.Client.Create(t.Context(), target(namespace, tc.mutate), client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
	}
}

// Each bad target gets a sentence with the field, the value and what is right.
func TestBadTargets(t *testing.T) {
	l := lab(t)
	namespace := l.Namespace(t)
	for _, tc := range []struct {
		name       string
		mutate     func(*v1alpha1.EgressTarget)
		wantErrors []string
	}{
		{"two destinations", func(t *v1alpha1.EgressTarget) { t.Spec.Destination.IP = "100.64.0.9" },
			[]string{"spec.destination must have exactly one of fqdn and ip"}},
		{"a name of one label", fqdn("localhost"), []string{"spec.destination.fqdn", `"localhost" does not appear to be a valid MagicDNS name: expected two or more labels`}},
		{"a name that is an address", fqdn("100.64.0.9"), []string{"spec.destination.fqdn", `"100.64.0.9" does not appear to be a valid MagicDNS name`}},
		{"a name with spaces", fqdn("my db.ts.net"), []string{`"my db.ts.net" does not appear to be a valid MagicDNS name`}},
		{"a label of 64 characters", fqdn(strings.Repeat("a", 64) + ".ts.net"), []string{"does not appear to be a valid MagicDNS name"}},
		{"a name of 254 characters", fqdn(strings.Repeat("a.", 126) + "bb"), []string{"does not appear to be a valid MagicDNS name"}},
		{"a name of 300 characters", fqdn(strings.Repeat("a.", 149) + "bb"), []string{"spec.destination.fqdn", "may not be more than 254"}},
		{"an address that is a name", ip("db.ts.net"), []string{"spec.destination.ip", `"db.ts.net" could not be parsed as a valid IP address: expected one such as`}},
		{"an address with a zone", ip("fe80::1%eth0"), []string{`"fe80::1%eth0" could not be parsed as a valid IP address`}},
		{"a network", ip("10.0.0.0/8"), []string{`"10.0.0.0/8" could not be parsed as a valid IP address`}},
		{"a loopback address", ip("127.0.0.1"), []string{"spec.destination.ip", `"127.0.0.1" cannot be a target: loopback`}},
		{"a multicast address", ip("ff02::1"), []string{`"ff02::1" cannot be a target`}},
		{"the unspecified address", ip("0.0.0.0"), []string{`"0.0.0.0" cannot be a target`}},
		{"a link-local address", ip("169.254.169.254"), []string{`"169.254.169.254" cannot be a target`}},
		{"the broadcast address", ip("255.255.255.255"), []string{`"255.255.255.255" cannot be a target`}},
		{"a group without ports", grouped(ports()), []string{"spec.ports is required with spec.proxyGroup"}},
		{"a group and a class", grouped(spec(func(s *v1alpha1.EgressTargetSpec) { s.ProxyClass = "prod" })),
			[]string{"spec.proxyClass is for a standalone target: remove it"}},
		{"a group and a hostname", grouped(spec(func(s *v1alpha1.EgressTargetSpec) { s.Hostname = "db" })),
			[]string{"spec.hostname is for a standalone target: remove it"}},
		{"a group and tags", grouped(spec(func(s *v1alpha1.EgressTargetSpec) { s.Tags = []v1alpha1.Tag{"tag:a"} })),
			[]string{"spec.tags is for a standalone target: remove it"}},
		{"a group's name", grouped(spec(func(s *v1alpha1.EgressTargetSpec) { s.ProxyGroup = "My_Group" })),
			[]string{"spec.proxyGroup", `"My_Group" is not the name of a ProxyGroup: use lower-case letters`}},
		{"a class's name", spec(func(s *v1alpha1.EgressTargetSpec) { s.ProxyClass = "Prod!" }), []string{"spec.proxyClass", `"Prod!" is not the name of a ProxyClass`}},
		{"a hostname", spec(func(s *v1alpha1.EgressTargetSpec) { s.Hostname = "my_db" }), []string{"spec.hostname", `"my_db" is not a valid hostname: use lower-case letters`}},
		{"a tag", spec(func(s *v1alpha1.EgressTargetSpec) { s.Tags = []v1alpha1.Tag{"k8s-tag"} }), []string{"spec.tags[0]", `invalid tag "k8s-tag": a tag is tag: and a letter`}},
		{"a tag twice", spec(func(s *v1alpha1.EgressTargetSpec) { s.Tags = []v1alpha1.Tag{"tag:a", "tag:a"} }), []string{"spec.tags[1]", "Duplicate value"}},
		{"a serviceName", spec(func(s *v1alpha1.EgressTargetSpec) { s.ServiceName = "1db" }), []string{"spec.serviceName", `"1db" is not a Service name: use lower-case letters`}},
		{"a name that is no Service name", func(t *v1alpha1.EgressTarget) { t.Name = "my.db" }, []string{`metadata.name: "my.db" cannot name a Service`, "or set spec.serviceName"}},
		{"a port of 0", ports(v1alpha1.TargetPort{}), []string{"spec.ports[0].port"}},
		{"a port of 65536", ports(v1alpha1.TargetPort{Port: 65536}), []string{"spec.ports[0].port", "65536", "less than or equal to 65535"}},
		{"a target port of 65536", ports(v1alpha1.TargetPort{Port: 1, TargetPort: 65536}), []string{"spec.ports[0].targetPort", "less than or equal to 65535"}},
		{"SCTP", ports(v1alpha1.TargetPort{Port: 1, Protocol: corev1.ProtocolSCTP}), []string{"spec.ports[0].protocol", `"SCTP"`, `"TCP", "UDP"`}},
		{"a port twice", ports(v1alpha1.TargetPort{Name: "a", Port: 1}, v1alpha1.TargetPort{Name: "b", Port: 1}), []string{"spec.ports[1]", "Duplicate value"}},
		{"several ports, one unnamed", ports(v1alpha1.TargetPort{Name: "a", Port: 1}, v1alpha1.TargetPort{Port: 2}), []string{"every port needs a name when there are several"}},
		{"a port name twice", ports(v1alpha1.TargetPort{Name: "a", Port: 1}, v1alpha1.TargetPort{Name: "a", Port: 2}), []string{"port names must be unique"}},
		{"a port name", ports(v1alpha1.TargetPort{Name: "My Port", Port: 1}), []string{"spec.ports[0].name", `"My Port" is not a port name: use lower-case letters`}},
		{"the health port", ports(v1alpha1.TargetPort{Port: 9002}), []string{"9002/TCP and 41641/UDP are used by a standalone proxy itself; choose another port and set targetPort"}},
		{"the port of tailscaled", ports(v1alpha1.TargetPort{Port: 41641, Protocol: corev1.ProtocolUDP}), []string{"9002/TCP and 41641/UDP are used by a standalone proxy itself"}},
		{"more ports than are allowed", ports(manyPorts(maxPorts + 1)...), []string{"spec.ports", fmt.Sprintf("must have at most %d items", maxPorts)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := l.Client.Create(t.Context(), target(namespace, tc.mutate))
			if !apierrors.IsInvalid(err) {
				t.Fatalf("got %v, want Invalid", err)
			}
			for _, want := range tc.wantErrors {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
		})
	}
	list := &v1alpha1.EgressTargetList{}
	if err := l.Client.List(t.Context(), list, client.InNamespace(namespace)); err != nil || len(list.Items) > 0 {
		t.Errorf("%d EgressTargets were stored: %v", len(list.Items), err)
	}
}

// What the Go types leave out, people write.
func TestBadManifests(t *testing.T) {
	l := lab(t)
	namespace := l.Namespace(t)
	for _, tc := range []struct{ name, spec, want string }{
		{"no destination", `{serviceName: db}`, "spec.destination: Required value"},
		{"an empty destination", `{destination: {}}`, "spec.destination"},
		{"an empty name", `{destination: {fqdn: ""}}`, "spec.destination.fqdn"},
		{"an empty address", `{destination: {ip: ""}}`, "spec.destination.ip"},
		{"an empty group", `{destination: {ip: 100.64.0.9}, proxyGroup: "", ports: [{port: 1}]}`, "spec.proxyGroup"},
		{"an empty list of ports", `{destination: {ip: 100.64.0.9}, ports: []}`, "spec.ports"},
		{"a port without a number", `{destination: {ip: 100.64.0.9}, ports: [{name: a}]}`, "spec.ports[0].port: Required value"},
		{"a number as text", `{destination: {ip: 100.64.0.9}, ports: [{port: "80"}]}`, "spec.ports[0].port"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{}}
			if err := yaml.Unmarshal([]byte("spec: "+tc.spec), &object.Object); err != nil {
				t.Fatal(err)
			}
			object.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("EgressTarget"))
			object.SetNamespace(namespace)
			object.SetName("db")
			if err := l.Client.Create(t.Context(), object); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// What kubectl prints comes from the API server.
func TestPrinterColumns(t *testing.T) {
	l := lab(t)
	namespace := l.Namespace(t)
	byName := target(namespace, func(t *v1alpha1.EgressTarget) { t.Name = "by-name" })
	byIP := target(namespace, func(t *v1alpha1.EgressTarget) {
		t.Name, t.Spec.Destination = "by-ip", v1alpha1.Destination{IP: "100.64.0.9"}
		grouped(nil)(t)
	})
	for _, object := range []*v1alpha1.EgressTarget{byName, byIP} {
		if err := l.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	byName.Status = v1alpha1.EgressTargetStatus{
		ObservedGeneration: 1, Address: "by-name.app.svc.cluster.local", Replicas: new(int32(3)), ReadyReplicas: new(int32(2)), Ready: "2/3",
		DestinationIPs: []string{"100.64.0.7"},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "TargetNotFound",
			Message: "no such device", LastTransitionTime: metav1.Now()}},
	}
	if err := l.Client.Status().Update(t.Context(), byName); err != nil {
		t.Fatal(err)
	}
	out := kubectl(t, l, "get", "egt", "-n", namespace, "-o", "wide")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	want := [][]string{
		{"NAME", "DESTINATION", "GROUP", "ADDRESS", "READY", "MESSAGE", "AGE", "IPS"},
		{"by-ip", "100.64.0.9", "egress"},
		{"by-name", "db.tail1234.ts.net", "by-name.app.svc.cluster.local", "2/3", "no such device", "100.64.0.7"},
	}
	if len(lines) != len(want) {
		t.Fatalf("got\n%s", out)
	}
	for i, words := range want {
		for _, word := range words {
			if !strings.Contains(lines[i], word) {
				t.Errorf("line %q lacks %q", lines[i], word)
			}
		}
	}
	if all := kubectl(t, l, "get", "tailscale", "-n", namespace); !strings.Contains(all, "by-ip") {
		t.Errorf("the category tailscale shows\n%s", all)
	}
}

func kubectl(t *testing.T, l *envtestlab.Lab, args ...string) string {
	t.Helper()
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"lab": {Server: l.Config.Host, CertificateAuthorityData: l.Config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"lab": {ClientCertificateData: l.Config.CertData, ClientKeyData: l.Config.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{"lab": {Cluster: "lab", AuthInfo: "lab"}},
		CurrentContext: "lab",
	}
	if !strings.Contains(l.Config.Host, "://") {
		config.Clusters["lab"].Server = "https://" + l.Config.Host
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(config, file); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), append([]string{"--kubeconfig", file}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, failed.String())
	}
	return out.String()
}
