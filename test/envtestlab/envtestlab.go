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

// Package envtestlab starts a real API server and etcd for tests, with the
// project's own resources installed from config/: what users apply is what is
// tested.
package envtestlab

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
)

// Options of a Lab.
type Options struct {
	// Webhooks installs config/webhook; the API server then calls the webhook
	// server of the Lab's managers.
	Webhooks bool
}

// Lab is a running API server.
type Lab struct {
	// Config has every permission.
	Config *rest.Config
	Scheme *runtime.Scheme
	// Client reads and writes without a cache.
	Client client.Client

	env      *envtest.Environment
	webhooks bool
}

// assetsVariable names the directory of kube-apiserver, etcd and kubectl.
const assetsVariable = "KUBEBUILDER_ASSETS"

// Require skips a test loudly where there is no API server to start, and fails
// it in CI, where a skip would hide that nothing was tested.
func Require(t testing.TB) {
	t.Helper()
	if os.Getenv(assetsVariable) != "" {
		return
	}
	why := assetsVariable + " does not name the directory of kube-apiserver and etcd"
	if os.Getenv("CI") != "" {
		t.Fatalf("CANNOT RUN IN CI: %s", why)
	}
	t.Skipf("SKIPPED, NOT TESTED HERE: %s", why)
}

// Start starts a Lab that ends with the test.
func Start(t testing.TB, opts Options) *Lab {
	t.Helper()
	Require(t)
	lab, err := start(opts)
	if err != nil {
		t.Fatalf("start the API server: %v", err)
	}
	t.Cleanup(func() {
		if err := lab.env.Stop(); err != nil {
			t.Errorf("stop the API server: %v", err)
		}
	})
	return lab
}

var shared struct {
	sync.Mutex
	labs map[Options]*Lab
}

// Shared returns the Lab that the tests of a package share; their TestMain has
// to call Main, which stops it.
func Shared(t testing.TB, opts Options) *Lab {
	t.Helper()
	Require(t)
	shared.Lock()
	defer shared.Unlock()
	if lab := shared.labs[opts]; lab != nil {
		return lab
	}
	lab, err := start(opts)
	if err != nil {
		t.Fatalf("start the API server: %v", err)
	}
	if shared.labs == nil {
		shared.labs = map[Options]*Lab{}
	}
	shared.labs[opts] = lab
	return lab
}

// Main runs the tests of a package and stops the Labs that they shared. It
// returns the exit code.
func Main(m *testing.M) int {
	flag.Parse()
	log := io.Discard
	if testing.Verbose() {
		log = os.Stderr
	}
	logf.SetLogger(zap.New(zap.UseDevMode(true), zap.WriteTo(log)))
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	for _, lab := range shared.labs {
		if err := lab.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "Could not stop the API server:", err)
			code = 1
		}
	}
	return code
}

func start(opts Options) (*Lab, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	env := &envtest.Environment{
		Scheme:                scheme,
		CRDDirectoryPaths:     []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	if opts.Webhooks {
		env.WebhookInstallOptions.Paths = []string{filepath.Join(root, "config", "webhook")}
	}
	cfg, err := env.Start()
	if err != nil {
		return nil, err
	}
	// Tests wait for the API server, not for the client's own limit.
	cfg.QPS, cfg.Burst = 1000, 2000
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, errors.Join(err, env.Stop())
	}
	return &Lab{Config: cfg, Scheme: scheme, Client: c, env: env, webhooks: opts.Webhooks}, nil
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod in any parent directory")
		}
		dir = parent
	}
}

// Namespace makes a namespace of the test's own.
func (l *Lab) Namespace(t testing.TB) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := l.Client.Create(t.Context(), ns); err != nil {
		t.Fatalf("create a namespace: %v", err)
	}
	return ns.Name
}

// Manager starts a manager that ends with the test. setup registers controllers
// and webhooks; where the Lab has webhooks, their server is up on return.
func (l *Lab) Manager(t testing.TB, setup func(manager.Manager) error) manager.Manager {
	t.Helper()
	served := &l.env.WebhookInstallOptions
	skipNameValidation := true
	opts := ctrl.Options{
		Scheme:  l.Scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		// Several managers in one process register controllers of one name.
		Controller: config.Controller{SkipNameValidation: &skipNameValidation},
	}
	if l.webhooks {
		opts.WebhookServer = webhook.NewServer(webhook.Options{
			Host: served.LocalServingHost, Port: served.LocalServingPort, CertDir: served.LocalServingCertDir,
		})
	}
	mgr, err := ctrl.NewManager(rest.CopyConfig(l.Config), opts)
	if err != nil {
		t.Fatalf("make a manager: %v", err)
	}
	if err := setup(mgr); err != nil {
		t.Fatalf("set up a manager: %v", err)
	}
	if l.webhooks {
		// Asking for the server has the manager start it.
		mgr.GetWebhookServer()
	}
	run(t, mgr)
	if !mgr.GetCache().WaitForCacheSync(t.Context()) {
		t.Fatal("the manager's cache did not sync")
	}
	if l.webhooks {
		waitForTLS(t, net.JoinHostPort(served.LocalServingHost, strconv.Itoa(served.LocalServingPort)))
	}
	return mgr
}

func run(t testing.TB, mgr manager.Manager) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
}

func waitForTLS(t testing.TB, address string) {
	t.Helper()
	dialer := &tls.Dialer{
		NetDialer: &net.Dialer{Timeout: time.Second},
		Config:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // only asks whether somebody listens
	}
	Eventually(t, 10*time.Second, func() error {
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// Eventually calls check until it returns nil, and fails the test with its last
// error after the time-out.
func Eventually(t testing.TB, timeout time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", timeout, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
