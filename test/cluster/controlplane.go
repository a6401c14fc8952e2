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
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const etcdAddr = "127.0.0.1:2379"

// writeIdentities makes the certificates, and a kubeconfig for everybody.
func (c *Cluster) writeIdentities() (err error) {
	if c.pki, err = newPKI(c.dirs.path("pki")); err != nil {
		return err
	}
	first := nodePrefix(1).Addr()
	err = errors.Join(
		c.pki.issue("apiserver", pkix.Name{CommonName: "kube-apiserver"},
			[]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
			[]net.IP{kubernetesAddr.AsSlice(), first.AsSlice(), net.IPv4(127, 0, 0, 1)}),
		c.pki.issue("kubelet-client", pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: []string{"system:masters"}}, nil, nil),
	)
	if err != nil {
		return err
	}
	if _, err := c.pki.newKey("service-accounts.key"); err != nil {
		return err
	}
	u := &users{server: fmt.Sprintf("https://%s:%d", first, apiServerPort), caPEM: c.pki.caPEM}
	errs := []error{
		u.add(c.Kubeconfig(), "admin", "system:masters"),
		u.add(c.dirs.path("controller-manager.kubeconfig"), "system:kube-controller-manager"),
		u.add(c.dirs.path("scheduler.kubeconfig"), "system:kube-scheduler"),
	}
	for _, n := range c.nodes {
		errs = append(errs, os.MkdirAll(n.dir, 0o755),
			u.add(n.dir+"/kubelet.kubeconfig", "system:node:"+n.Name, "system:nodes"),
			u.add(n.dir+"/kube-proxy.kubeconfig", "system:kube-proxy"))
	}
	return errors.Join(append(errs, u.write(c.pki.path("tokens.csv")))...)
}

// startControlPlane starts it in node 1's network, where kube-proxy makes
// Services reachable for the API server's webhook calls.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	err := c.run("etcd", "--data-dir="+c.dirs.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=http://"+etcdAddr, "--advertise-client-urls=http://"+etcdAddr,
		"--listen-peer-urls=http://127.0.0.1:2380")
	if err != nil {
		return err
	}
	err = c.waitFor(ctx, "etcd", c.process("etcd"), func(ctx context.Context) error {
		conn, err := c.nodes[0].Host.Dial(ctx, "tcp", etcdAddr)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

// KillAPIServer ends the API server at once. The controller manager and the
// scheduler end too: without an API server they lose their leases, and whoever
// holds them afterwards starts afresh. Everything else stays.
func (c *Cluster) KillAPIServer() {
	c.kill("kube-apiserver", "kube-controller-manager", "kube-scheduler")
}

// StartAPIServer starts what KillAPIServer ended, and returns once the API
// server is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	err := c.run("kube-apiserver", "--etcd-servers=http://"+etcdAddr,
		"--advertise-address="+c.nodes[0].Host.Addr.String(), fmt.Sprintf("--secure-port=%d", apiServerPort),
		"--service-cluster-ip-range="+serviceNetwork.String(), "--allow-privileged=true",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--token-auth-file="+c.pki.path("tokens.csv"), "--client-ca-file="+c.pki.caFile(),
		"--tls-cert-file="+c.pki.path("apiserver.crt"), "--tls-private-key-file="+c.pki.path("apiserver.key"),
		"--kubelet-client-certificate="+c.pki.path("kubelet-client.crt"), "--kubelet-client-key="+c.pki.path("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+c.pki.path("service-accounts.key"),
		"--service-account-signing-key-file="+c.pki.path("service-accounts.key"))
	if err != nil {
		return err
	}
	err = c.waitFor(ctx, "the API server", c.process("kube-apiserver"), func(ctx context.Context) error {
		return c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		return err
	}
	err = c.run("kube-controller-manager", "--kubeconfig="+c.dirs.path("controller-manager.kubeconfig"),
		"--leader-elect=false", "--use-service-account-credentials", "--controllers=*,-nodeipam",
		"--root-ca-file="+c.pki.caFile(), "--service-account-private-key-file="+c.pki.path("service-accounts.key"),
		// A dead node is noticed in seconds, as its kubelet reports every few.
		"--node-monitor-period=1s", "--node-monitor-grace-period=16s", "--cert-dir="+c.dirs.path("pki", "controller-manager"))
	if err != nil {
		return err
	}
	return c.run("kube-scheduler", "--kubeconfig="+c.dirs.path("scheduler.kubeconfig"), "--leader-elect=false",
		"--cert-dir="+c.dirs.path("pki", "scheduler"))
}

// createNodes makes the Node objects, because it is here and not in the
// controller manager that each node's Pod network is chosen.
func (c *Cluster) createNodes(ctx context.Context) error {
	for _, n := range c.nodes {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name},
			Spec:       corev1.NodeSpec{PodCIDR: n.PodCIDR.String(), PodCIDRs: []string{n.PodCIDR.String()}},
		}
		if _, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("making Node %s: %w", n.Name, err)
		}
	}
	return nil
}
