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
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tailnet-egress/egress-operator/test/netlab"
)

var labName = regexp.MustCompile(`^[a-z][a-z0-9]{0,7}$`)

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

	// lock is held as long as the cluster runs.
	lock io.Closer

	mu        sync.Mutex
	processes map[string]*process
}

// Start starts a cluster and returns once its nodes are Ready and its DNS
// answers. One runs on a machine at a time: Start waits up to 5 minutes for
// another one's Stop. When it fails, nothing runs, and logs are left in
// StateDir.
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
	c := &Cluster{options: options, dirs: dirs(options.StateDir), started: time.Now(), processes: map[string]*process{}}
	if err := c.takeLock(ctx); err != nil {
		return nil, err
	}
	if err := Remove(options.StateDir); err != nil {
		return nil, errors.Join(fmt.Errorf("removing an earlier cluster: %w", err), c.lock.Close())
	}
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
	if !labName.MatchString(o.Name) {
		return fmt.Errorf("name %q: must be at most 8 lower-case letters and digits", o.Name)
	}
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
	return errors.Join(removeAllButLogs(c.dirs), c.lock.Close())
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
