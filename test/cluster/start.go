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
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// lockAddress is an abstract socket: it ends with the process that listens, and
// leaves no file.
const lockAddress = "@egress-operator-testbed"

// takeLock makes clusters take turns, because they share addresses of this
// machine.
func (c *Cluster) takeLock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	said := false
	return c.waitFor(ctx, "another cluster on this machine to stop", nil, func(context.Context) error {
		listener, err := net.Listen("unix", lockAddress)
		if err != nil && !said {
			c.say("waiting for another cluster on this machine to stop")
			said = true
		}
		c.lock = listener
		return err
	})
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
