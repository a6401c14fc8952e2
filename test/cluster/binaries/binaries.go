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

// Package binaries builds what the testbed runs, from Go modules alone: the
// Kubernetes, container runtime and CoreDNS modules in its sub-directories, and
// this project's own commands.
package binaries

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
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
)

// The modules, each in the sub-directory of its name.
const (
	kubernetesModule = "kubernetes"
	containersModule = "containers"
	corednsModule    = "coredns"
)

// binary is one program and how it is built.
type binary struct {
	name string
	// module is the sub-directory whose go.mod pins the version.
	module string
	pkg    string
	// stamp is whether Kubernetes' version is linked in.
	stamp bool
	tags  string
	cgo   bool
}

// assets are what envtest needs.
var assets = []binary{
	{name: "etcd", module: kubernetesModule, pkg: "go.etcd.io/etcd/server/v3"},
	{name: "kube-apiserver", module: kubernetesModule, pkg: "k8s.io/kubernetes/cmd/kube-apiserver", stamp: true},
	{name: "kubectl", module: kubernetesModule, pkg: "k8s.io/kubernetes/cmd/kubectl", stamp: true},
}

// rest is what a node needs beside them.
var rest = []binary{
	{name: "kubelet", module: kubernetesModule, pkg: "k8s.io/kubernetes/cmd/kubelet", stamp: true},
	{name: "kube-controller-manager", module: kubernetesModule, pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", stamp: true},
	{name: "kube-scheduler", module: kubernetesModule, pkg: "k8s.io/kubernetes/cmd/kube-scheduler", stamp: true},
	{name: "kube-proxy", module: kubernetesModule, pkg: "k8s.io/kubernetes/cmd/kube-proxy", stamp: true},
	{name: "containerd", module: containersModule, pkg: "github.com/containerd/containerd/v2/cmd/containerd"},
	{name: "containerd-shim-runc-v2", module: containersModule, pkg: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
	{name: "ctr", module: containersModule, pkg: "github.com/containerd/containerd/v2/cmd/ctr"},
	{name: "bridge", module: containersModule, pkg: "github.com/containernetworking/plugins/plugins/main/bridge"},
	{name: "loopback", module: containersModule, pkg: "github.com/containernetworking/plugins/plugins/main/loopback"},
	{name: "host-local", module: containersModule, pkg: "github.com/containernetworking/plugins/plugins/ipam/host-local"},
	{name: "portmap", module: containersModule, pkg: "github.com/containernetworking/plugins/plugins/meta/portmap"},
	{name: "runc", module: containersModule, pkg: "github.com/opencontainers/runc", tags: "seccomp", cgo: true},
	{name: "coredns", module: corednsModule, pkg: "."},
}

// product is what this repository builds for its images and tests. Go's own
// cache decides what is built anew.
var product = []binary{
	{name: "manager", pkg: "./cmd"},
	{name: "egress-proxy", pkg: "./cmd/proxy"},
	{name: "tailscaled", pkg: "tailscale.com/cmd/tailscaled"},
	{name: "testpod", pkg: "./test/testpod"},
	{name: "pause", pkg: "./test/pause"},
}

// Missing says in a sentence what this machine lacks to build a cluster's
// programs, "" where it lacks nothing.
func Missing() string {
	if _, err := exec.LookPath("go"); err != nil {
		return "go is not installed: see https://go.dev/doc/install"
	}
	packages := missingForC()
	if len(packages) == 0 || runcIsThere() {
		return ""
	}
	list := strings.Join(packages, " ")
	return fmt.Sprintf("building runc needs what is not installed: apt-get install %s (or the package runc itself)", list)
}

// missingForC are the Debian packages that are not installed and that a program
// needs which is partly C, such as runc.
func missingForC() []string {
	var out []string
	for _, program := range []string{"gcc", "pkg-config"} {
		if _, err := exec.LookPath(program); err != nil {
			out = append(out, program)
		}
	}
	if exec.Command("pkg-config", "--exists", "libseccomp").Run() != nil {
		out = append(out, "libseccomp-dev")
	}
	return out
}

// runcIsThere is whether runc was built before or is installed.
func runcIsThere() bool {
	if _, err := exec.LookPath("runc"); err == nil {
		return true
	}
	root, err := Root()
	if err != nil {
		return false
	}
	dir, err := clusterDir(root)
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(dir, "runc"))
	return err == nil
}

// Assets is the directory with kube-apiserver, etcd and kubectl: the one that
// KUBEBUILDER_ASSETS names where it is set, else built into bin/.
func Assets(ctx context.Context, progress io.Writer) (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir, nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	return ensure(ctx, root, progress, assets)
}

// Cluster is the directory with every program of a cluster, built into bin/.
func Cluster(ctx context.Context, progress io.Writer) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	return ensure(ctx, root, progress, slices.Concat(assets, rest))
}

// Product builds the named programs of this repository and of tailscaled, every
// one where none is named, and returns their directory.
func Product(ctx context.Context, progress io.Writer, names ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	unlock, err := lock(root)
	if err != nil {
		return "", err
	}
	defer unlock()
	dir := filepath.Join(root, "bin", "product")
	wanted := slices.DeleteFunc(slices.Clone(product), func(b binary) bool {
		return len(names) > 0 && !slices.Contains(names, b.name)
	})
	return dir, each(progress, wanted, func(b binary) error { return b.build(ctx, root, filepath.Join(dir, b.name), "") })
}

// ensure builds those that are missing in the directory whose name tells their
// versions.
func ensure(ctx context.Context, root string, progress io.Writer, wanted []binary) (string, error) {
	unlock, err := lock(root)
	if err != nil {
		return "", err
	}
	defer unlock()
	dir, err := clusterDir(root)
	if err != nil {
		return "", err
	}
	version, err := kubernetesVersion(root)
	if err != nil {
		return "", err
	}
	var missing []binary
	for _, b := range wanted {
		if _, err := os.Stat(filepath.Join(dir, b.name)); err != nil {
			missing = append(missing, b)
		}
	}
	return dir, each(progress, missing, func(b binary) error {
		return b.provide(ctx, root, filepath.Join(dir, b.name), version)
	})
}

// lock keeps other processes, such as the tests of other packages, from building
// the same files at the same time.
func lock(root string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(root, "bin", ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", file.Name(), err), file.Close())
	}
	// Closing the file frees the lock.
	return func() { _ = file.Close() }, nil
}

// each builds one after the other and tells which, how many there are, every half
// minute that one is still at work, and how long it took.
func each(progress io.Writer, binaries []binary, build func(binary) error) error {
	for i, b := range binaries {
		started := time.Now()
		say := func(word, suffix string) {
			_, _ = fmt.Fprintf(progress, "%s %s (%d of %d)%s\n", word, b.name, i+1, len(binaries), suffix)
		}
		say("building", "")
		err := withNews(func() error { return build(b) }, func() {
			say("building", fmt.Sprintf(", %s so far", time.Since(started).Round(time.Second)))
		})
		if err != nil {
			return err
		}
		say("built", " in "+time.Since(started).Round(100*time.Millisecond).String())
	}
	return nil
}

// withNews calls news every half minute that work takes.
func withNews(work func() error, news func()) error {
	result := make(chan error, 1)
	go func() { result <- work() }()
	ticker := time.NewTicker(30 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case err := <-result:
			return err
		case <-ticker.C:
			news()
		}
	}
}

// provide builds the program, or links to the installed one where it is partly C
// and this machine cannot build that.
func (b binary) provide(ctx context.Context, root, path, version string) error {
	if b.cgo && len(missingForC()) > 0 {
		if installed, err := exec.LookPath(b.name); err == nil {
			// A link whose program was uninstalled would be in the way.
			_ = os.Remove(path)
			return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(installed, path))
		}
	}
	return b.build(ctx, root, path, version)
}

// build makes the program under a temporary name, so that one which was
// interrupted is never taken for whole.
func (b binary) build(ctx context.Context, root, path, version string) error {
	ldflags := "-s -w"
	if b.stamp {
		ldflags += fmt.Sprintf(" -X k8s.io/component-base/version.gitVersion=%[1]s -X k8s.io/client-go/pkg/version.gitVersion=%[1]s", version)
	}
	partial := path + ".partial"
	args := []string{"build", "-tags", b.tags, "-ldflags", ldflags, "-o", partial}
	if b.module != "" {
		// The product is built without it, since every flag that differs from those of
		// the tests compiles all that both import once more.
		args = append(args, "-trimpath")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, b.pkg)...)
	cmd.Dir = root
	if b.module != "" {
		cmd.Dir = filepath.Join(modules(root), b.module)
	}
	cgo := "0"
	if b.cgo {
		cgo = "1"
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS=-buildvcs=false -mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", b.name, err, out)
	}
	return os.Rename(partial, path)
}

func modules(root string) string { return filepath.Join(root, "test", "cluster", "binaries") }

// clusterDir is the directory of what the modules pin. Its name changes with
// them and with how they are built.
func clusterDir(root string) (string, error) {
	sum := sha256.New()
	for _, file := range []string{
		kubernetesModule + "/go.mod", kubernetesModule + "/go.sum", containersModule + "/go.mod", containersModule + "/go.sum",
		corednsModule + "/go.mod", corednsModule + "/go.sum", corednsModule + "/main.go",
	} {
		data, err := os.ReadFile(filepath.Join(modules(root), file))
		if err != nil {
			return "", err
		}
		_, _ = sum.Write(data)
	}
	_, _ = fmt.Fprint(sum, assets, rest)
	version, err := kubernetesVersion(root)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "bin", "testbed-"+version+"-"+hex.EncodeToString(sum.Sum(nil))[:8]), nil
}

func kubernetesVersion(root string) (string, error) {
	data, err := os.ReadFile(filepath.Join(modules(root), kubernetesModule, "go.mod"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "k8s.io/kubernetes" {
			return fields[1], nil
		}
	}
	return "", errors.New("the kubernetes module does not require k8s.io/kubernetes")
}

// Root is the top of this repository, found from the working directory upwards.
func Root() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("asking go for the module: %w", err)
	}
	file := string(bytes.TrimSpace(out))
	if file == "" || file == os.DevNull {
		return "", errors.New("not inside the repository: no go.mod in this directory or above it")
	}
	return filepath.Dir(file), nil
}
