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

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailnet-egress/egress-operator/test/images"
	"github.com/tailnet-egress/egress-operator/test/netlab"
)

const testLab = "cltest"

// testPods are a Pod per node, each with a Service of its name, and one that is
// its own client.
const testPods = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  nodeName: %[1]s
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
  - {name: echo, image: %[2]s, imagePullPolicy: Never, args: [echo, %[1]s, ":7"]}
  - {name: hello, image: %[2]s, imagePullPolicy: Never, args: [dial, -count=1000000, -interval=1s, tcp, "localhost:7"]}
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  selector: {app: %[1]s}
  ports:
  - {name: tcp, port: 70, targetPort: 7, protocol: TCP}
  - {name: udp, port: 70, targetPort: 7, protocol: UDP}
---
`

func TestCluster(t *testing.T) {
	netlab.Require(t)
	binDir := os.Getenv("TESTBED_BIN")
	tars := buildImages(t, binDir)
	// Not t.TempDir, whose long name would not leave room for sockets.
	stateDir, err := os.MkdirTemp("", "cl")
	if err != nil {
		t.Fatal(err)
	}
	before := machine(t)
	start := func() *Cluster {
		lab, err := netlab.New(testLab)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Start(t.Context(), Options{
			Name: testLab, StateDir: stateDir, Lab: lab, BinDir: binDir, Images: tars, Log: testWriter{t},
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	t.Cleanup(func() {
		if err := Remove(stateDir); err != nil {
			t.Error(err)
		}
		if err := netlab.Remove(testLab); err != nil {
			t.Error(err)
		}
	})

	c := start()
	t.Run("pods", func(t *testing.T) { checkPods(t, c) })
	t.Run("api server restart", func(t *testing.T) {
		c.KillAPIServer()
		if _, err := kubectl(t, c, "", "get", "nodes", "--request-timeout=2s"); err == nil {
			t.Error("the API server answered after it was killed")
		}
		if err := c.StartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		if out, err := kubectl(t, c, "", "get", "nodes"); err != nil || !strings.Contains(out, "node2") {
			t.Errorf("after its restart: %s, %v", out, err)
		}
	})

	t.Run("crash", func(t *testing.T) {
		records, err := filepath.Glob(filepath.Join(stateDir, "pids", "*"))
		if err != nil || len(records) != 6 {
			t.Fatalf("records %v, %v: want 4 of the control plane and 2 of nodes", records, err)
		}
		for _, record := range records {
			pid, err := recordedPID(record)
			if err != nil || pid == 0 {
				t.Fatalf("%s: process %d, %v", record, pid, err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	})
	c = start()
	t.Run("stop", func(t *testing.T) {
		if err := c.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := netlab.Remove(testLab); err != nil {
			t.Fatal(err)
		}
		if after := machine(t); after != before {
			t.Errorf("the machine before:\n%s\nand after Stop:\n%s", before, after)
		}
		if _, err := os.Stat(stateDir); err == nil {
			t.Error("the state directory is still there")
		}
	})
}

func checkPods(t *testing.T, c *Cluster) {
	nodes := c.Nodes()
	var manifest string
	for _, n := range nodes {
		manifest += fmt.Sprintf(testPods, n.Name, images.TestPod)
	}
	if _, err := kubectl(t, c, manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if _, err := kubectl(t, c, "", "wait", "--for=condition=Ready", "--timeout=60s", "pod", "--all"); err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		peer := nodes[(i+1)%len(nodes)]
		ip, err := kubectl(t, c, "", "get", "pod", peer.Name, "-o", "jsonpath={.status.podIP}")
		if err != nil {
			t.Fatal(err)
		}
		if addr, err := netip.ParseAddr(ip); err != nil || !peer.PodCIDR.Contains(addr) {
			t.Errorf("%s has Pod address %q, not of %s", peer.Name, ip, peer.PodCIDR)
		}
		for _, dial := range [][2]string{
			{"tcp", ip + ":7"}, {"udp", ip + ":7"},
			{"tcp", peer.Name + ".default.svc.cluster.local:70"}, {"udp", peer.Name + ":70"},
			// Its own Service: the packet comes back to where it left.
			{"tcp", n.Name + ".default.svc.cluster.local:70"},
		} {
			want := peer.Name
			if strings.HasPrefix(dial[1], n.Name) {
				want = n.Name
			}
			out, err := kubectl(t, c, "", "exec", n.Name, "-c", "echo", "--", "/testpod", "dial", dial[0], dial[1])
			if err != nil || !strings.Contains(out, "ok "+want+" ping 0") {
				t.Errorf("from %s to %v: %s, %v", n.Name, dial, out, err)
			}
		}
		logs, err := kubectl(t, c, "", "logs", n.Name, "-c", "hello")
		if err != nil || !strings.Contains(logs, "ok "+n.Name+" ping") {
			t.Errorf("logs of %s: %q, %v", n.Name, logs, err)
		}
	}
}

func kubectl(t *testing.T, c *Cluster, stdin string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.bin("kubectl"), append([]string{"--kubeconfig=" + c.Kubeconfig(), "--cache-dir=" + c.dirs.path("kubectl")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

func buildImages(t *testing.T, binDir string) []string {
	t.Helper()
	dir := t.TempDir()
	var tars []string
	for _, image := range []struct{ name, program, from string }{
		{images.Pause, "pause", ""}, {images.CoreDNS, "coredns", filepath.Join(binDir, "coredns")}, {images.TestPod, "testpod", ""},
	} {
		if image.from == "" {
			image.from = filepath.Join(dir, image.program)
			build := exec.CommandContext(t.Context(), "go", "build", "-o", image.from, "../"+image.program)
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("building %s: %v: %s", image.program, err, out)
			}
		}
		tar := image.from + ".tar"
		if filepath.Dir(tar) != dir {
			tar = filepath.Join(dir, image.program+".tar")
		}
		entry := "/" + image.program
		err := images.Image{Name: image.name, Files: map[string]string{entry: image.from}, Entrypoint: []string{entry}}.Write(tar)
		if err != nil {
			t.Fatal(err)
		}
		tars = append(tars, tar)
	}
	return tars
}

// machine lists what a cluster could leave behind.
func machine(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `
		ls /run/netns | grep -e `+testLab+` -e cni-
		find /sys/fs/cgroup -type d -name '`+testLab+`*'
		grep -e `+testLab+` -e containerd -e kubelet /proc/mounts
		pgrep -fl -e 'containerd|kubelet|kube-|etcd --|/coredns|/pause|/testpod'
		ls -d `+strings.Join(hiddenDirs, " ")+` 2>/dev/null
		true`).CombinedOutput()
	if err != nil {
		t.Fatalf("looking at the machine: %v: %s", err, out)
	}
	return string(out)
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}
