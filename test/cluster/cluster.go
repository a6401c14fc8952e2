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

// Package cluster runs a real Kubernetes cluster on one Linux machine: control
// plane and nodes in network namespaces of a netlab.Lab, Pods in containerd.
// It needs root, and no registry: images are imported from tar files.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	corev1 "k8s.io/api/core/v1"

	"github.com/tailnet-egress/egress-operator/test/netlab"
)

// startTimeout bounds each wait of a start; a slow machine needs a fifth.
const startTimeout = 3 * time.Minute

// Options say what to start.
type Options struct {
	// Name is the lab's name: at most 8 letters and digits.
	Name string
	// StateDir is absolute and short, because sockets are below it. What a
	// cluster left there is removed first.
	StateDir string
	// Lab is the network to join, 172.29.0.0/24: the machine itself gets .1, the
	// nodes .11 and up. Addresses from .100 on are free for others.
	Lab *netlab.Lab
	// Nodes is how many, by default 2.
	Nodes int
	// BinDir holds the programs of Kubernetes, containerd and CNI.
	BinDir string
	// Images are tar files for every node; registry.k8s.io/pause:3.10 and
	// testbed.local/coredns:dev must be among them.
	Images []string
	// Log gets a line per step; nil for none.
	Log io.Writer
}

// Cluster is a running cluster.
type Cluster struct {
	options Options
	dirs    dirs
	pki     *pki
	nodes   []*Node
	rest    *rest.Config
	client  kubernetes.Interface
	started time.Time

	mu        sync.Mutex
	processes map[string]*process
}

// Start starts a cluster and returns once its nodes are Ready and its DNS
// answers. When it fails, nothing runs, and logs are left in StateDir.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Nodes == 0 {
		options.Nodes = 2
	}
	if options.Log == nil {
		options.Log = io.Discard
	}
	if err := options.validate(); err != nil {
		return nil, err
	}
	if err := Remove(options.StateDir); err != nil {
		return nil, fmt.Errorf("removing an earlier cluster: %w", err)
	}
	c := &Cluster{options: options, dirs: dirs(options.StateDir), started: time.Now(), processes: map[string]*process{}}
	for i := range options.Nodes {
		name := fmt.Sprintf("node%d", i+1)
		c.nodes = append(c.nodes, &Node{
			Name: name, PodCIDR: podPrefix(i + 1), cluster: c,
			dir: c.dirs.path(name), cgroup: "/" + options.Name + "-" + name,
		})
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the cluster (logs are in %s): %w", c.dirs.logs(), err), c.end())
	}
	return c, nil
}

func (o Options) validate() error {
	if !filepath.IsAbs(o.StateDir) || !filepath.IsAbs(o.BinDir) {
		return fmt.Errorf("StateDir %q and BinDir %q must be absolute", o.StateDir, o.BinDir)
	}
	if o.Nodes < 1 || o.Nodes > maxNodes {
		return fmt.Errorf("%d nodes: must be between 1 and %d", o.Nodes, maxNodes)
	}
	const longestSocket = "/node89/kubelet/pod-resources/kubelet.sock"
	if len(o.StateDir)+len(longestSocket) > 107 {
		return fmt.Errorf("StateDir %s is too long for the sockets below it", o.StateDir)
	}
	for _, program := range []string{
		"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "etcd",
		"containerd", "containerd-shim-runc-v2", "ctr", "runc", "bridge", "host-local",
	} {
		if _, err := os.Stat(filepath.Join(o.BinDir, program)); err != nil {
			return err
		}
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return errors.New("nft is not installed (package nftables)")
	}
	return nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.prepare(ctx); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := c.startControlPlane(groupCtx); err != nil {
			return err
		}
		if err := c.createNodes(groupCtx); err != nil {
			return err
		}
		c.say("API server is ready")
		// Kubelets that start before it would only sleep between attempts.
		return os.WriteFile(c.readyFile(), nil, 0o644)
	})
	for _, n := range c.nodes {
		group.Go(func() error {
			if err := n.Start(); err != nil {
				return err
			}
			for _, image := range c.options.Images {
				if err := n.loadImage(groupCtx, image); err != nil {
					return err
				}
			}
			c.say("containerd of %s has its images", n.Name)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := c.applyManifests(ctx); err != nil {
		return err
	}
	if err := c.waitFor(ctx, "Ready nodes", nil, c.nodesReady); err != nil {
		return err
	}
	c.say("nodes are Ready")
	if err := c.waitFor(ctx, "CoreDNS", nil, c.dnsReady); err != nil {
		return err
	}
	c.say("CoreDNS is ready")
	return nil
}

// prepare makes everything that needs no program of the cluster to run.
func (c *Cluster) prepare(ctx context.Context) error {
	for _, dir := range []string{c.dirs.pids(), c.dirs.logs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	var r record
	for _, n := range c.nodes {
		r.Namespaces = append(r.Namespaces, c.options.Name+"-"+n.Name)
		r.Cgroups = append(r.Cgroups, n.cgroup)
	}
	for _, dir := range hiddenDirs {
		if _, err := os.Stat(dir); err != nil {
			r.Dirs = append(r.Dirs, dir)
		}
	}
	if err := writeRecord(c.dirs, r); err != nil {
		return err
	}
	for _, dir := range r.Dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := c.joinMachine(ctx); err != nil {
		return err
	}
	for i, n := range c.nodes {
		if err := n.setUpNetwork(i + 1); err != nil {
			return fmt.Errorf("network of %s: %w", n.Name, err)
		}
		if err := makeCgroup(n.cgroup); err != nil {
			return err
		}
	}
	if err := c.writeIdentities(); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := n.writeFiles(); err != nil {
			return err
		}
	}
	var err error
	if c.rest, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return err
	}
	c.client, err = kubernetes.NewForConfig(c.rest)
	return err
}

// joinMachine gives the machine its address on the lab. The interface of an
// earlier lab goes a moment after the lab.
func (c *Cluster) joinMachine(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return c.waitFor(ctx, "the lab's network to be free", nil, func(context.Context) error {
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return err
		}
		for _, addr := range addrs {
			if addr.String() == machineAddr.String() {
				return fmt.Errorf("another lab on this machine uses %s: remove it first", labNetwork)
			}
		}
		return c.options.Lab.JoinMachine(machineAddr)
	})
}

func (c *Cluster) applyManifests(ctx context.Context) error {
	text, err := render("coredns.yaml", map[string]any{"CoreDNSImage": coreDNSImage, "DNSAddr": dnsAddr})
	if err != nil {
		return err
	}
	kubectl := exec.CommandContext(ctx, c.bin("kubectl"), "--kubeconfig="+c.Kubeconfig(),
		"--cache-dir="+c.dirs.path("kubectl"), "apply", "--server-side", "-f", "-")
	kubectl.Stdin = strings.NewReader(text)
	if out, err := kubectl.CombinedOutput(); err != nil {
		return fmt.Errorf("installing CoreDNS: %w: %s", err, out)
	}
	return nil
}

func (c *Cluster) nodesReady(ctx context.Context) error {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		ready := corev1.ConditionUnknown
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				ready = condition.Status
			}
		}
		if ready != corev1.ConditionTrue {
			return fmt.Errorf("%s has Ready %s", node.Name, ready)
		}
	}
	return nil
}

func (c *Cluster) dnsReady(ctx context.Context) error {
	deployment, err := c.client.AppsV1().Deployments("kube-system").Get(ctx, "coredns", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if deployment.Status.ReadyReplicas < 1 {
		return errors.New("its Deployment has no ready replica")
	}
	return nil
}

// Stop ends the cluster at once and removes everything that it made, its state
// directory included.
func (c *Cluster) Stop() error {
	if err := c.end(); err != nil {
		return err
	}
	return os.RemoveAll(c.options.StateDir)
}

func (c *Cluster) end() error {
	for _, n := range c.nodes {
		n.Stop()
	}
	c.mu.Lock()
	processes := c.processes
	c.processes = map[string]*process{}
	c.mu.Unlock()
	for _, p := range processes {
		p.kill()
	}
	return removeAllButLogs(c.dirs)
}

// Kubeconfig returns the path of an administrator's kubeconfig, which works
// from this machine's own shell.
func (c *Cluster) Kubeconfig() string { return c.dirs.path("kubeconfig") }

// RESTConfig returns an administrator's access; a copy.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.rest) }

// Nodes returns the nodes, node1 first. The control plane is in node 1's
// network namespace.
func (c *Cluster) Nodes() []*Node { return c.nodes }

// LogDir returns where the logs of the cluster's programs are until Stop.
func (c *Cluster) LogDir() string { return c.dirs.logs() }

// LoadImage imports an image's tar file on every node.
func (c *Cluster) LoadImage(ctx context.Context, tar string) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		group.Go(func() error { return n.loadImage(ctx, tar) })
	}
	return group.Wait()
}

func (c *Cluster) bin(name string) string { return filepath.Join(c.options.BinDir, name) }

func (c *Cluster) readyFile() string { return c.dirs.path("api-server-ready") }

// environment lets containerd find its shim, and the shim runc.
func (c *Cluster) environment() []string {
	return append(os.Environ(), "PATH="+c.options.BinDir+":"+os.Getenv("PATH"))
}

// run starts a program of the control plane.
func (c *Cluster) run(name string, args ...string) error {
	if c.process(name) != nil {
		return fmt.Errorf("%s is running", name)
	}
	cmd := c.nodes[0].Host.Command(context.Background(), c.bin(name), args...)
	p, err := startProcess(c.dirs, name, cmd)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes[name] = p
	return nil
}

func (c *Cluster) process(name string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name]
}

func (c *Cluster) take(name string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.processes[name]
	delete(c.processes, name)
	return p
}

// waitFor calls check until it succeeds. It gives up when the context or the
// start's time ends, or p, which may be nil.
func (c *Cluster) waitFor(ctx context.Context, what string, p *process, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var ended <-chan struct{}
	if p != nil {
		ended = p.done
	}
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w, last: %w", what, ctx.Err(), err)
		case <-ended:
			return fmt.Errorf("waiting for %s: %s ended, see %s", what, p.name, c.dirs.log(p.name))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *Cluster) say(format string, args ...any) {
	_, _ = fmt.Fprintf(c.options.Log, "%5.1fs %s\n", time.Since(c.started).Seconds(), fmt.Sprintf(format, args...))
}
