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
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tailnet-egress/egress-operator/test/netlab"
)

// podBridge is the interface that a node's Pods are on.
const podBridge = "cni0"

// Node is one node of a cluster.
type Node struct {
	// Name is the Node object's: node1, node2, ….
	Name string
	// Host is its network namespace; Host.Addr is its InternalIP.
	Host *netlab.Host
	// PodCIDR is the network of its Pods.
	PodCIDR netip.Prefix

	cluster *Cluster
	dir     string
	cgroup  string
	process *process
}

// nodeValues fills the templates of a node's files.
type nodeValues struct {
	Name, Dir, LogDir, BinDir, Socket, ReadyFile, CAFile, CgroupRoot string
	Addr, DNSAddr                                                    netip.Addr
	PodCIDR, ClusterCIDR                                             netip.Prefix
	PauseImage                                                       string
	HiddenDirs                                                       []string
	PodBridge                                                        string
}

func (n *Node) socket() string { return filepath.Join(n.dir, "containerd.sock") }

// setUpNetwork joins the node to the lab and lets it route for its Pods.
func (n *Node) setUpNetwork(number int) (err error) {
	c := n.cluster
	if n.Host, err = c.options.Lab.Host(n.Name, nodePrefix(number)); err != nil {
		return err
	}
	if err := n.Host.Do(addPodBridge); err != nil {
		return fmt.Errorf("bridge of the Pods: %w", err)
	}
	for _, sysctl := range [][2]string{
		{"net/ipv4/ip_forward", "1"},
		{"net/ipv4/conf/all/send_redirects", "0"},
		{"net/ipv4/conf/" + podBridge + "/send_redirects", "0"},
		// The ports of the bridge are isolated, so that Pods of a node reach each
		// other only through its router and kube-proxy sees both directions of what
		// it translated. The router answers for every Pod's address.
		{"net/ipv4/conf/" + podBridge + "/proxy_arp_pvlan", "1"},
		{"net/ipv4/neigh/" + podBridge + "/proxy_delay", "0"},
	} {
		if err := n.Host.Sysctl(sysctl[0], sysctl[1]); err != nil {
			return err
		}
	}
	if err := n.leaveBridgedAlone(); err != nil {
		return err
	}
	for i := range c.options.Nodes {
		if i+1 == number {
			continue
		}
		if err := n.Host.Route(podPrefix(i+1), nodePrefix(i+1).Addr()); err != nil {
			return fmt.Errorf("route to the Pods of node %d: %w", i+1, err)
		}
	}
	if err := n.routeServices(); err != nil {
		return fmt.Errorf("route to Services: %w", err)
	}
	rules, err := render("masquerade.nft", nodeValues{ClusterCIDR: podNetwork})
	if err != nil {
		return err
	}
	nft := n.Host.Command(context.Background(), "nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("masquerading Pods: %w: %s", err, out)
	}
	return nil
}

// addPodBridge makes the bridge before the CNI plugin would, because only an
// existing one has sysctls. Its fixed hardware address stays when Pods come.
func addPodBridge() error {
	return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{
		Name: podBridge, HardwareAddr: net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01},
	}})
}

// leaveBridgedAlone keeps br_netfilter, where that is loaded, from translating
// frames inside the bridge, whose isolated ports would then not let them out.
func (n *Node) leaveBridgedAlone() error {
	err := n.Host.Sysctl("net/bridge/bridge-nf-call-iptables", "0")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// routeServices gives the node's own processes, such as the API server that
// calls a webhook, a route for packets that kube-proxy then redirects.
func (n *Node) routeServices() error {
	return n.Host.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		dst := &net.IPNet{IP: serviceNetwork.Addr().AsSlice(), Mask: net.CIDRMask(serviceNetwork.Bits(), 32)}
		return netlink.RouteReplace(&netlink.Route{Dst: dst, LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK})
	})
}

func (n *Node) writeFiles() error {
	c := n.cluster
	for _, sub := range []string{"cni", "ipam", "pods"} {
		if err := os.MkdirAll(filepath.Join(n.dir, sub), 0o755); err != nil {
			return err
		}
	}
	values := nodeValues{
		Name: n.Name, Dir: n.dir, LogDir: c.dirs.logs(), BinDir: c.options.BinDir, Socket: n.socket(),
		ReadyFile: c.readyFile(), CAFile: c.pki.caFile(), CgroupRoot: n.cgroup,
		Addr: n.Host.Addr, DNSAddr: dnsAddr, PodCIDR: n.PodCIDR, ClusterCIDR: podNetwork,
		PauseImage: pauseImage, HiddenDirs: hiddenDirs, PodBridge: podBridge,
	}
	for name, file := range map[string]string{
		"node.sh": "node.sh", "containerd.toml": "containerd.toml", "cni.conflist": "cni/pods.conflist",
		"kubelet.yaml": "kubelet.yaml", "kube-proxy.yaml": "kube-proxy.yaml",
	} {
		if err := renderTo(filepath.Join(n.dir, file), name, values); err != nil {
			return err
		}
	}
	return nil
}

// Start starts a stopped node: it boots like a machine that had lost power, and
// its Pods with it. It does not wait for the Node to be Ready.
func (n *Node) Start() error {
	if n.process != nil {
		return fmt.Errorf("%s is running", n.Name)
	}
	if err := os.RemoveAll(n.socket()); err != nil {
		return err
	}
	cmd := n.Host.Command(context.Background(), "sh", filepath.Join(n.dir, "node.sh"))
	cmd.Env = n.cluster.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	p, err := startProcess(n.cluster.dirs, n.Name, cmd)
	n.process = p
	return err
}

// Stop ends every process of the node at once, Pods included, as a power cut
// does.
func (n *Node) Stop() {
	if n.process == nil {
		return
	}
	n.process.kill()
	n.process = nil
}

// loadImage imports an image tar into the node's containerd.
func (n *Node) loadImage(ctx context.Context, tar string) error {
	if n.process == nil {
		return fmt.Errorf("%s is not running", n.Name)
	}
	if err := n.cluster.waitFor(ctx, "containerd of "+n.Name, n.process, func(ctx context.Context) error {
		return n.ctr(ctx, "version").Run()
	}); err != nil {
		return err
	}
	if out, err := n.ctr(ctx, "-n", "k8s.io", "images", "import", tar).CombinedOutput(); err != nil {
		return fmt.Errorf("importing %s on %s: %w: %s", tar, n.Name, err, out)
	}
	return nil
}

func (n *Node) ctr(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, n.cluster.bin("ctr"), append([]string{"-a", n.socket()}, args...)...)
	cmd.WaitDelay = time.Second
	return cmd
}
