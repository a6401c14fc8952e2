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
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailnet-egress/egress-operator/test/cluster/binaries"
	"github.com/tailnet-egress/egress-operator/test/images"
	"github.com/tailnet-egress/egress-operator/test/netlab"
)

const testLab = "cltest"

// testPods are a Pod per node, made like an egress proxy's, with a Service of
// its name.
const testPods = `
apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s}
data: {key: before}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 0
  initContainers:
  - name: sidecar
    image: %[2]s
    imagePullPolicy: Never
    restartPolicy: Always
    args: [serve]
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL], add: [NET_ADMIN, NET_RAW]}
      readOnlyRootFilesystem: true
      seccompProfile: {type: RuntimeDefault}
    volumeMounts:
    - {name: tun, mountPath: /dev/net/tun}
    - {name: config, mountPath: /config}
  containers:
  - {name: echo, image: %[2]s, imagePullPolicy: Never, args: [echo, %[1]s, ":7"]}
  - {name: hello, image: %[2]s, imagePullPolicy: Never, args: [dial, -count=1000000, -interval=1s, tcp, "localhost:7"]}
  volumes:
  - {name: tun, hostPath: {path: /dev/net/tun, type: CharDevice}}
  - {name: config, configMap: {name: %[1]s}}
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
	if why := binaries.Missing(); why != "" {
		t.Fatal(why)
	}
	binDir, err := binaries.Cluster(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	tars := buildImages(t, binDir)
	// Not t.TempDir, whose long name would not leave room for sockets.
	stateDir, err := os.MkdirTemp("", "cl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(Remove(stateDir), netlab.Remove(testLab)); err != nil {
			t.Error(err)
		}
	})
	start := func() *Cluster {
		lab, err := netlab.New(testLab)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Start(t.Context(), Options{
			Name: testLab, StateDir: stateDir, Lab: lab, BinDir: binDir, Images: tars, Log: t.Output(),
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}

	before := machine(t, stateDir)
	c := start()
	createPods(t, c)
	t.Run("Pods reach each other", func(t *testing.T) { checkPods(t, c) })
	t.Run("Pods reach the lab", func(t *testing.T) { checkLab(t, c) })
	t.Run("nodes reach Services", func(t *testing.T) { checkServices(t, c) })
	t.Run("volumes follow their objects", func(t *testing.T) { checkVolumes(t, c) })
	t.Run("the API server restarts", func(t *testing.T) { checkAPIServer(t, c) })
	t.Run("a node restarts", func(t *testing.T) { checkNode(t, c) })

	crash(t, c)
	c = start()
	if err := errors.Join(c.Stop(), netlab.Remove(testLab)); err != nil {
		t.Fatal(err)
	}
	if after := machine(t, stateDir); after != before {
		t.Errorf("the machine before:\n%s\nand after Stop:\n%s", before, after)
	}
	if _, err := os.Stat(stateDir); err == nil {
		t.Error("the state directory is still there")
	}
}

func createPods(t *testing.T, c *Cluster) {
	t.Helper()
	var manifest string
	for _, n := range c.Nodes() {
		manifest += fmt.Sprintf(testPods, n.Name, images.TestPod)
	}
	mustKubectl(t, c, manifest, "apply", "-f", "-")
	mustKubectl(t, c, "", "wait", "--for=condition=Ready", "--timeout=60s", "pod", "--all")
}

func checkPods(t *testing.T, c *Cluster) {
	nodes := c.Nodes()
	for i, n := range nodes {
		peer := nodes[(i+1)%len(nodes)]
		ip := mustKubectl(t, c, "", "get", "pod", peer.Name, "-o", "jsonpath={.status.podIP}")
		if addr, err := netip.ParseAddr(ip); err != nil || !peer.PodCIDR.Contains(addr) {
			t.Errorf("%s has Pod address %q, not of %s", peer.Name, ip, peer.PodCIDR)
		}
		for _, dial := range []struct{ network, addr, want string }{
			{"tcp", ip + ":7", peer.Name},
			{"udp", ip + ":7", peer.Name},
			{"tcp", peer.Name + ".default.svc.cluster.local:70", peer.Name},
			{"udp", peer.Name + ":70", peer.Name},
			// Its own Service: the packet comes back to where it left.
			{"tcp", n.Name + ".default.svc.cluster.local:70", n.Name},
		} {
			out := mustKubectl(t, c, "", "exec", n.Name, "-c", "echo", "--", "/testpod", "dial", dial.network, dial.addr)
			if !strings.Contains(out, "ok "+dial.want+" ping 0") {
				t.Errorf("from %s to %v: %s", n.Name, dial, out)
			}
		}
		if logs := mustKubectl(t, c, "", "logs", n.Name, "-c", "hello"); !strings.Contains(logs, "ok "+n.Name+" ping") {
			t.Errorf("logs of %s: %q", n.Name, logs)
		}
	}
}

// checkLab has Pods dial a host of the lab, which must see their node.
func checkLab(t *testing.T, c *Cluster) {
	host, err := c.options.Lab.Host("outside", netip.MustParsePrefix("172.29.0.100/24"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := host.Listen("tcp", "172.29.0.100:7")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // The test ends.
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(conn, "hello %s\n", conn.RemoteAddr())
			_ = conn.Close()
		}
	}()
	for _, n := range c.Nodes() {
		out := mustKubectl(t, c, "", "exec", n.Name, "-c", "echo", "--", "/testpod", "dial", "tcp", "172.29.0.100:7")
		if !strings.Contains(out, "ok hello "+n.Host.Addr.String()+":") {
			t.Errorf("from %s: %s", n.Name, out)
		}
	}
}

// checkServices dials Services as the API server dials a webhook's.
func checkServices(t *testing.T, c *Cluster) {
	for _, n := range c.Nodes() {
		ip := mustKubectl(t, c, "", "get", "service", n.Name, "-o", "jsonpath={.spec.clusterIP}")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		conn, err := c.Nodes()[0].Host.Dial(ctx, "tcp", net.JoinHostPort(ip, "70"))
		if err != nil {
			t.Errorf("from node1 to the Service of %s: %v", n.Name, err)
			continue
		}
		_ = conn.Close()
	}
}

func checkVolumes(t *testing.T, c *Cluster) {
	n := c.Nodes()[0]
	mustKubectl(t, c, "", "patch", "configmap", n.Name, "--type=merge", "-p", `{"data":{"key":"after"}}`)
	started := time.Now()
	eventually(t, 15*time.Second, func() error {
		files, err := filepath.Glob(filepath.Join(n.dir, "kubelet/pods/*/volumes/kubernetes.io~configmap/config/key"))
		if err != nil || len(files) != 1 {
			return fmt.Errorf("files %v, %w", files, err)
		}
		value, err := os.ReadFile(files[0])
		if err == nil && string(value) != "after" {
			err = fmt.Errorf("%s has %q", files[0], value)
		}
		return err
	})
	t.Logf("a ConfigMap's change reached its volume after %s", time.Since(started).Round(time.Millisecond))
}

func checkAPIServer(t *testing.T, c *Cluster) {
	c.KillAPIServer()
	if _, err := kubectl(t, c, "", "get", "nodes", "--request-timeout=2s"); err == nil {
		t.Error("the API server answered after it was killed")
	}
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := mustKubectl(t, c, "", "get", "nodes"); !strings.Contains(out, "node2") {
		t.Errorf("after its restart: %s", out)
	}
}

func checkNode(t *testing.T, c *Cluster) {
	n := c.Nodes()[1]
	started := time.Now()
	n.Stop()
	mustKubectl(t, c, "", "wait", "--for=condition=Ready=Unknown", "--timeout=60s", "node", n.Name)
	t.Logf("a dead node was noticed after %s", time.Since(started).Round(time.Second))
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	mustKubectl(t, c, "", "wait", "--for=condition=Ready", "--timeout=60s", "node", n.Name)
	started = time.Now()
	eventually(t, time.Minute, func() error {
		_, err := kubectl(t, c, "", "exec", n.Name, "-c", "echo", "--", "/testpod", "dial", "tcp", "node1:70")
		return err
	})
	t.Logf("its Pod ran again %s after it was Ready", time.Since(started).Round(time.Second))
}

// crash kills everything that a cluster has on record and frees its lock, as a
// crash of its owner does, and nothing else.
func crash(t *testing.T, c *Cluster) {
	t.Helper()
	if err := c.lock.Close(); err != nil {
		t.Fatal(err)
	}
	records, err := filepath.Glob(filepath.Join(c.dirs.pids(), "*"))
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
}

func eventually(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s still: %v", limit, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func mustKubectl(t *testing.T, c *Cluster, stdin string, args ...string) string {
	t.Helper()
	out, err := kubectl(t, c, stdin, args...)
	if err != nil {
		t.Fatal(out, err)
	}
	return out
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
	product, err := binaries.Product(t.Context(), t.Output(), "pause", "testpod")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var tars []string
	for name, file := range map[string]string{
		images.Pause: filepath.Join(product, "pause"), images.TestPod: filepath.Join(product, "testpod"),
		images.CoreDNS: filepath.Join(binDir, "coredns"),
	} {
		program := filepath.Base(file)
		tar := filepath.Join(dir, program+".tar")
		image := images.Image{Name: name, Files: map[string]string{"/" + program: file}, Entrypoint: []string{"/" + program}}
		if err := image.Write(tar); err != nil {
			t.Fatal(err)
		}
		tars = append(tars, tar)
	}
	return tars
}

// machine lists what a cluster could leave behind.
func machine(t *testing.T, stateDir string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `
		ls /run/netns | grep -e `+testLab+` -e cni-
		ip -br link | grep `+testLab+`
		find /sys/fs/cgroup -type d -name '`+testLab+`*'
		grep `+stateDir+` /proc/[0-9]*/mounts
		pgrep -fl '[/]`+stateDir[1:]+`/'
		ls -d `+strings.Join(hiddenDirs, " ")+` 2>/dev/null
		sysctl vm.overcommit_memory kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys
		true`).CombinedOutput()
	if err != nil {
		t.Fatalf("looking at the machine: %v: %s", err, out)
	}
	return string(out)
}
