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

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/test/envtestlab"
)

// asOperator makes the test binary be the operator.
const asOperator = "TEST_RUN_AS_OPERATOR"

func TestMain(m *testing.M) {
	if os.Getenv(asOperator) != "" {
		main()
		return
	}
	os.Exit(envtestlab.Main(m))
}

const (
	namespace = "tailscale"
	prefix    = "egress-operator-"
	account   = "system:serviceaccount:" + namespace + ":" + prefix + "controller-manager"
)

// TestOperatorAsInstalled runs the operator with exactly the permissions of
// config/rbac: it becomes ready, gives the webhook a certificate, serves both
// ways in, and ends when told to.
func TestOperatorAsInstalled(t *testing.T) {
	lab := envtestlab.Shared(t, envtestlab.Options{})
	install(t, lab)
	operator := startOperator(t, lab)
	envtestlab.Eventually(t, 30*time.Second, func() error { return operator.get("health", "/readyz", "ok") })

	create(t, lab, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "operator-oauth"}, Data: map[string][]byte{"auth_key": []byte("k")}})
	create(t, lab, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "app"}})
	create(t, lab, &v1alpha1.EgressTarget{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "direct"},
		Spec: v1alpha1.EgressTargetSpec{Destination: v1alpha1.Destination{IP: "100.64.0.9"}}})
	create(t, lab, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "annotated", Annotations: map[string]string{v1alpha1.AnnotationTailnetFQDN: "db.tail1234.ts.net"}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "placeholder"},
	})
	for _, name := range []string{"direct", "annotated"} {
		eventuallyGet(t, lab, types.NamespacedName{Namespace: namespace, Name: names.Child("app", name)}, &appsv1.StatefulSet{})
		target := &v1alpha1.EgressTarget{}
		envtestlab.Eventually(t, 10*time.Second, func() error {
			if err := lab.Client.Get(t.Context(), types.NamespacedName{Namespace: "app", Name: name}, target); err != nil {
				return err
			}
			if target.Status.Ready != "0/1" {
				return fmt.Errorf("status is %+v", target.Status)
			}
			return nil
		})
	}
	eventuallyGet(t, lab, types.NamespacedName{Namespace: "app", Name: "direct"}, &corev1.Service{})
	envtestlab.Eventually(t, 10*time.Second, func() error {
		return operator.get("metrics", "/metrics", `egress_operator_targets{condition="Accepted",reason="Accepted",status="True"} 2`)
	})

	// A lost certificate comes back, and the API server is told of the new one.
	before := caBundles(t, lab)
	if err := lab.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "webhook-server-cert"}}); err != nil {
		t.Fatal(err)
	}
	envtestlab.Eventually(t, 40*time.Second, func() error {
		if bytes.Equal(caBundles(t, lab), before) {
			return errors.New("the webhook configurations still have the old authority")
		}
		return operator.get("health", "/readyz", "ok")
	})

	for _, o := range []client.Object{
		&v1alpha1.EgressTarget{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "direct"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "annotated"}},
	} {
		if err := lab.Client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	envtestlab.Eventually(t, 10*time.Second, func() error {
		err := lab.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: names.Child("app", "direct")}, &appsv1.StatefulSet{})
		if err == nil {
			return errors.New("the StatefulSet of a deleted target is still there")
		}
		return client.IgnoreNotFound(err)
	})
	if log := operator.log.String(); strings.Contains(log, "orbidden") || strings.Contains(log, "ERROR") || strings.Contains(log, `"level":"error"`) {
		t.Errorf("the operator logged errors:\n%s", log)
	}
	if err := operator.stop(); err != nil {
		t.Errorf("the operator ended with %v", err)
	}
}

func TestBadFlags(t *testing.T) {
	for _, args := range [][]string{{"--operator-namespace="}, {"stray"}, {"--operator-namespace=tailscale", "--proxy-image=x", "--login-server=nowhere"}} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
		cmd.Env = []string{asOperator + "=1"}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.HasPrefix(string(out), "egress-operator: ") {
			t.Errorf("%q: %v, output %q", args, err, out)
		}
	}
}

// install applies config/rbac and config/webhook under the names that
// config/default gives them.
func install(t *testing.T, lab *envtestlab.Lab) {
	t.Helper()
	create(t, lab, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	subject := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: account}}
	for _, file := range []string{"rbac/role.yaml", "rbac/leader_election_role.yaml", "webhook/manifests.yaml"} {
		for _, object := range load(t, file) {
			object.SetName(prefix + object.GetName())
			switch o := object.(type) {
			case *rbacv1.Role:
				o.Namespace = namespace
				create(t, lab, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: o.Name}, Subjects: subject,
					RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: o.Name}})
			case *rbacv1.ClusterRole:
				create(t, lab, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: o.Name}, Subjects: subject,
					RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: o.Name}})
			}
			create(t, lab, object)
		}
	}
}

func load(t *testing.T, file string) []client.Object {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "config", file))
	if err != nil {
		t.Fatal(err)
	}
	var out []client.Object
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		if !strings.Contains(document, "kind:") {
			continue
		}
		var decoded runtime.Object
		if decoded, _, err = clientgoscheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil); err != nil {
			t.Fatal(err)
		}
		out = append(out, decoded.(client.Object))
	}
	return out
}

func create(t *testing.T, lab *envtestlab.Lab, o client.Object) {
	t.Helper()
	if err := lab.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func eventuallyGet(t *testing.T, lab *envtestlab.Lab, key types.NamespacedName, o client.Object) {
	t.Helper()
	envtestlab.Eventually(t, 10*time.Second, func() error { return lab.Client.Get(t.Context(), key, o) })
}

func caBundles(t *testing.T, lab *envtestlab.Lab) []byte {
	t.Helper()
	var mutating admissionv1.MutatingWebhookConfiguration
	var validating admissionv1.ValidatingWebhookConfiguration
	if err := errors.Join(
		lab.Client.Get(t.Context(), types.NamespacedName{Name: prefix + "mutating-webhook-configuration"}, &mutating),
		lab.Client.Get(t.Context(), types.NamespacedName{Name: prefix + "validating-webhook-configuration"}, &validating),
	); err != nil {
		t.Fatal(err)
	}
	bundle := mutating.Webhooks[0].ClientConfig.CABundle
	if len(bundle) == 0 || !bytes.Equal(bundle, validating.Webhooks[0].ClientConfig.CABundle) {
		return nil
	}
	return bundle
}

// operator is a running one.
type operator struct {
	cmd   *exec.Cmd
	ports map[string]string
	log   *lockedBuffer
	ended chan error
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func startOperator(t *testing.T, lab *envtestlab.Lab) *operator {
	t.Helper()
	o := &operator{ports: map[string]string{}, log: &lockedBuffer{}, ended: make(chan error, 1)}
	for _, name := range []string{"health", "metrics", "webhook"} {
		o.ports[name] = freePort(t)
	}
	o.cmd = exec.CommandContext(context.Background(), os.Args[0], "--leader-elect=false", "--metrics-secure=false",
		"--health-probe-bind-address=127.0.0.1:"+o.ports["health"], "--metrics-bind-address=127.0.0.1:"+o.ports["metrics"],
		"--webhook-port="+o.ports["webhook"])
	o.cmd.Env = []string{asOperator + "=1", "KUBECONFIG=" + kubeconfig(t, lab), "OPERATOR_NAMESPACE=" + namespace, "PROXY_IMAGE=proxy:test"}
	o.cmd.Stdout, o.cmd.Stderr = o.log, o.log
	if err := o.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { o.ended <- o.cmd.Wait() }()
	t.Cleanup(func() {
		_ = o.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("the operator said:\n%s", o.log)
		}
	})
	return o
}

func (o *operator) stop() error {
	if err := o.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-o.ended:
		return err
	case <-time.After(20 * time.Second):
		return errors.New("still running 20 s after SIGTERM")
	}
}

// get asks one of its servers and wants status 200 and a body with that in it.
func (o *operator) get(server, path, want string) error {
	response, err := http.Get("http://127.0.0.1:" + o.ports[server] + path)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
		return fmt.Errorf("%s answers %s without %q", path, response.Status, want)
	}
	return nil
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

// kubeconfig is the Lab's, as the operator's ServiceAccount.
func kubeconfig(t *testing.T, lab *envtestlab.Lab) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"lab": {Server: lab.Config.Host, CertificateAuthorityData: lab.Config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"lab": {ClientCertificateData: lab.Config.CertData, ClientKeyData: lab.Config.KeyData, Impersonate: account, ImpersonateGroups: []string{"system:serviceaccounts", "system:authenticated"}}},
		Contexts:       map[string]*clientcmdapi.Context{"lab": {Cluster: "lab", AuthInfo: "lab"}},
		CurrentContext: "lab",
	}
	if err := clientcmd.WriteToFile(config, path); err != nil {
		t.Fatal(err)
	}
	return path
}
