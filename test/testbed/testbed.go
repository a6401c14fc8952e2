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

// Package testbed is a real cluster and a real tailnet on one lab network, with
// the operator installed the way a user installs it: what the end-to-end tests
// and the demo run on.
package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tailnet-egress/egress-operator/test/cluster"
	"github.com/tailnet-egress/egress-operator/test/cluster/binaries"
	"github.com/tailnet-egress/egress-operator/test/images"
	"github.com/tailnet-egress/egress-operator/test/netlab"
	"github.com/tailnet-egress/egress-operator/test/tailnet"
)

// Namespace is where the operator and its proxies run.
const Namespace = "tailscale"

const (
	labName = "egress"
	// StateDir is short, because sockets live below it.
	StateDir = "/var/lib/egress-testbed"
	lockFile = "/run/egress-testbed.lock"
)

// Bed is a running testbed. There is at most one on a machine, since its
// network's addresses are fixed.
type Bed struct {
	Lab     *netlab.Lab
	Cluster *cluster.Cluster
	Tailnet *tailnet.Tailnet

	root, programs, product string
	imageTars               []string
	lock                    *os.File
	log                     io.Writer
	closers                 []func() error
}

// Missing says in a sentence what this machine lacks to run a testbed, "" where
// it lacks nothing.
func Missing() string {
	if why := netlab.Missing(); why != "" {
		return why
	}
	if why := binaries.Missing(); why != "" {
		return why
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return "/dev/net/tun does not exist: the kernel needs TUN devices (modprobe tun)"
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return "nft is not installed: apt-get install nftables"
	}
	return ""
}

// Up builds what is missing and starts everything, telling progress to log. Each
// step can be interrupted; what was started is then removed.
func Up(ctx context.Context, log io.Writer) (*Bed, error) {
	b := &Bed{log: log}
	if err := b.takeLock(); err != nil {
		return nil, err
	}
	started := time.Now()
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"building what is missing of Kubernetes, containerd, CoreDNS and the product", b.build},
		{"starting a network of namespaces", b.startLab},
		{"starting a Kubernetes cluster of two nodes", b.startCluster},
		{"starting a tailnet", b.startTailnet},
		{"installing the operator with config/overlays/testbed", b.install},
	} {
		_, _ = fmt.Fprintf(log, "==> %s (%s)\n", step.what, time.Since(started).Round(time.Second))
		if err := step.do(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", step.what, err), b.Close())
		}
	}
	return b, nil
}

// Close removes everything.
func (b *Bed) Close() error {
	var errs []error
	for _, closer := range slices.Backward(b.closers) {
		errs = append(errs, closer())
	}
	b.closers = nil
	return errors.Join(errs...)
}

// Remove removes what a testbed that crashed left behind; it refuses to touch one
// that runs.
func Remove() error {
	b := &Bed{}
	if err := b.takeLock(); err != nil {
		return err
	}
	return b.Close()
}

func remove() error {
	return errors.Join(
		cluster.Remove(filepath.Join(StateDir, "c")),
		tailnet.Remove(filepath.Join(StateDir, "t")),
		netlab.Remove(labName),
		os.RemoveAll(StateDir),
	)
}

// takeLock makes sure that this is the only testbed, and removes what a crashed
// one left.
func (b *Bed) takeLock() error {
	file, err := os.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return errors.New("a testbed is already running on this machine: end it with `make demo-down`")
	}
	b.lock = file
	b.closers = append(b.closers, file.Close)
	if err := remove(); err != nil {
		return errors.Join(fmt.Errorf("removing what an earlier testbed left: %w", err), b.Close())
	}
	b.closers = append(b.closers, func() error { return os.RemoveAll(StateDir) })
	return os.MkdirAll(StateDir, 0o755)
}

func (b *Bed) build(ctx context.Context) (err error) {
	if b.root, err = binaries.Root(); err != nil {
		return err
	}
	if b.programs, err = binaries.Cluster(ctx, b.log); err != nil {
		return err
	}
	if b.product, err = binaries.Product(ctx, b.log); err != nil {
		return err
	}
	b.imageTars, err = images.Build(b.root, b.programs, b.product, StateDir)
	return err
}

func (b *Bed) startLab(context.Context) (err error) {
	if b.Lab, err = netlab.New(labName); err != nil {
		return err
	}
	b.closers = append(b.closers, b.Lab.Close)
	return nil
}

func (b *Bed) startCluster(ctx context.Context) (err error) {
	b.Cluster, err = cluster.Start(ctx, cluster.Options{
		Name: labName, StateDir: filepath.Join(StateDir, "c"), Lab: b.Lab,
		BinDir: b.programs, Images: b.imageTars, Log: b.log,
	})
	if err != nil {
		return err
	}
	b.closers = append(b.closers, b.Cluster.Stop)
	return nil
}

func (b *Bed) startTailnet(ctx context.Context) (err error) {
	b.Tailnet, err = tailnet.Start(ctx, tailnet.Options{
		Lab: b.Lab, StateDir: filepath.Join(StateDir, "t"), Tailscaled: filepath.Join(b.product, "tailscaled"),
	})
	if err != nil {
		return err
	}
	b.closers = append(b.closers, b.Tailnet.Close)
	return nil
}

// install does what the README tells a user to do.
func (b *Bed) install(ctx context.Context) error {
	if _, err := b.Kubectl(ctx, "", "apply", "--server-side", "-k", filepath.Join(b.root, "config/overlays/testbed")); err != nil {
		return err
	}
	if _, err := b.Kubectl(ctx, "", "-n", Namespace, "create", "secret", "generic", "operator-oauth",
		"--from-literal=auth_key="+b.Tailnet.AuthKey()); err != nil {
		return err
	}
	_, err := b.Kubectl(ctx, "", "-n", Namespace, "rollout", "status", "--timeout=120s", "deployment/egress-operator-controller-manager")
	if err != nil {
		pods, _ := b.Kubectl(ctx, "", "-n", Namespace, "get", "pods,events")
		logs, _ := b.Kubectl(ctx, "", "-n", Namespace, "logs", "--tail=50", "deployment/egress-operator-controller-manager")
		return fmt.Errorf("%w\n%s\n%s", err, pods, logs)
	}
	return b.waitForWebhook(ctx)
}

// waitForWebhook asks the API server for a Service that the webhook must refuse,
// until it does: from then on Services are judged at admission.
func (b *Bed) waitForWebhook(ctx context.Context) error {
	probe := `{"apiVersion":"v1","kind":"Service","metadata":{"name":"probe","namespace":"default","annotations":{"tailscale.com/tailnet-fqdn":"x"}},"spec":{"type":"ExternalName","externalName":"x.y"}}`
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		_, err := b.Kubectl(ctx, probe, "create", "--dry-run=server", "-f", "-")
		if err != nil && strings.Contains(err.Error(), "does not appear to be a valid MagicDNS name") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the webhook did not answer in time, last: %w", errors.Join(err, ctx.Err()))
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// KubectlPath is the kubectl that belongs to the cluster.
func (b *Bed) KubectlPath() string { return filepath.Join(b.programs, "kubectl") }

// Root is the repository.
func (b *Bed) Root() string { return b.root }

// Kubectl runs kubectl against the cluster; its error holds what it printed.
func (b *Bed) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, b.KubectlPath(), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+b.Cluster.Kubeconfig(), "KUBECTL_KUBERC=false")
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Apply applies manifests.
func (b *Bed) Apply(ctx context.Context, manifests string) error {
	_, err := b.Kubectl(ctx, manifests, "apply", "--server-side", "--force-conflicts", "-f", "-")
	return err
}

// Exec runs the test Pod's program in a Pod.
func (b *Bed) Exec(ctx context.Context, namespace, pod string, args ...string) (string, error) {
	return b.Kubectl(ctx, "", append([]string{"-n", namespace, "exec", pod, "--", "/testpod"}, args...)...)
}

// Clients starts one test Pod on each node, in the namespace, which is made where
// it does not exist, and returns their names.
func (b *Bed) Clients(ctx context.Context, namespace string) ([]string, error) {
	manifests := []string{fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}\n", namespace)}
	var pods []string
	for _, node := range b.Cluster.Nodes() {
		pod := "client-" + node.Name
		pods = append(pods, pod)
		manifests = append(manifests, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {app: client}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers:
  - {name: client, image: %s, imagePullPolicy: Never, args: [serve]}
`, pod, namespace, node.Name, images.TestPod))
	}
	if err := b.Apply(ctx, strings.Join(manifests, "---\n")); err != nil {
		return nil, err
	}
	_, err := b.Kubectl(ctx, "", "-n", namespace, "wait", "--for=condition=Ready", "--timeout=60s", "pod", "-l", "app=client")
	return pods, err
}
