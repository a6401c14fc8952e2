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

// Package netlab builds small networks on one Linux machine: hosts in network
// namespaces of their own, joined by a bridge in another one. Everything is
// named after the lab, so that what a crash left behind can be removed.
package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const netnsDir = "/run/netns"

// Lab is a network: a bridge and the hosts on it.
type Lab struct {
	name   string
	bridge *Host
}

// Host is a network namespace.
type Host struct {
	// Namespace is its name under /run/netns.
	Namespace string
	// Addr is its address on the lab's network; invalid on an isolated host.
	Addr netip.Addr
}

// Missing says in a sentence why this process cannot build labs, "" where it
// can.
func Missing() string {
	if runtime.GOOS != "linux" {
		return "network namespaces need Linux"
	}
	if os.Geteuid() != 0 {
		return "network namespaces need root"
	}
	if _, err := exec.LookPath("nsenter"); err != nil {
		return "nsenter is not installed (package util-linux)"
	}
	return ""
}

// New makes an empty lab; name is at most 8 letters and digits. What an earlier
// lab of that name left behind is removed first.
func New(name string) (*Lab, error) {
	if err := Remove(name); err != nil {
		return nil, err
	}
	bridge, err := NewHost(name + "-bridge")
	if err != nil {
		return nil, err
	}
	err = bridge.Do(func() error {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("adding the bridge: %w", err)
		}
		return netlink.LinkSetUp(link)
	})
	if err != nil {
		return nil, errors.Join(err, bridge.Close())
	}
	return &Lab{name: name, bridge: bridge}, nil
}

// Open returns the lab of that name that another process made.
func Open(name string) *Lab {
	return &Lab{name: name, bridge: &Host{Namespace: name + "-bridge"}}
}

// Host adds a host whose interface eth0 on the bridge has the given addresses,
// the first of which is its Addr.
func (l *Lab) Host(name string, addrs ...netip.Prefix) (*Host, error) {
	h, err := NewHost(l.name + "-" + name)
	if err != nil {
		return nil, err
	}
	target, err := netns.GetFromPath(h.path())
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	defer target.Close() //nolint:errcheck // A leaked descriptor ends with the test.
	if err := l.plug(name, target, "eth0"); err != nil {
		return nil, errors.Join(fmt.Errorf("joining %s to the bridge: %w", h.Namespace, err), h.Close())
	}
	if err := h.Do(func() error { return setUp("eth0", addrs) }); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.Addr = addrs[0].Addr()
	return h, nil
}

// JoinMachine gives the machine itself an interface on the bridge, so that a
// person can reach the lab from a shell. It ends with the lab.
func (l *Lab) JoinMachine(addrs ...netip.Prefix) error {
	self, err := netns.Get()
	if err != nil {
		return err
	}
	defer self.Close() //nolint:errcheck // A leaked descriptor ends with the test.
	name := machineLink(l.name)
	if err := l.plug("machine", self, name); err != nil {
		return fmt.Errorf("joining this machine to the bridge: %w", err)
	}
	return setUp(name, addrs)
}

// machineLink is the machine's own interface on a lab's network.
func machineLink(lab string) string { return lab + "-lab" }

// plug makes a veth pair: one end on the bridge, the other called ifname in the
// namespace peer.
func (l *Lab) plug(name string, peer netns.NsHandle, ifname string) error {
	return l.bridge.Do(func() error {
		veth := &netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: "v-" + name},
			PeerName:      ifname,
			PeerNamespace: netlink.NsFd(peer),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		br, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(veth, br); err != nil {
			return err
		}
		return netlink.LinkSetUp(veth)
	})
}

// Close removes the bridge and every host of the lab.
func (l *Lab) Close() error { return Remove(l.name) }

// Remove deletes every namespace of the lab of that name; none is no error.
// Processes inside them have to be ended before.
func Remove(name string) error {
	paths, err := filepath.Glob(filepath.Join(netnsDir, name+"-*"))
	if err != nil {
		return err
	}
	var errs []error
	// It would end with the bridge's namespace, but only some time after that.
	if link, err := netlink.LinkByName(machineLink(name)); err == nil {
		errs = append(errs, netlink.LinkDel(link))
	}
	for _, path := range paths {
		errs = append(errs, (&Host{Namespace: filepath.Base(path)}).Close())
	}
	return errors.Join(errs...)
}

// NewHost makes a namespace that is on no bridge, with its loopback up.
func NewHost(namespace string) (*Host, error) {
	h := &Host{Namespace: namespace}
	err := onThread(func() error {
		ns, err := netns.NewNamed(namespace)
		if err != nil {
			return fmt.Errorf("making network namespace %s: %w", namespace, err)
		}
		defer ns.Close() //nolint:errcheck // A leaked descriptor ends with the test.
		return setUp("lo", nil)
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Close deletes the namespace.
func (h *Host) Close() error {
	err := netns.DeleteNamed(h.Namespace)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (h *Host) path() string { return filepath.Join(netnsDir, h.Namespace) }

// Do runs f on a thread inside the namespace. Sockets that f opens stay there;
// goroutines that it starts do not.
func (h *Host) Do(f func() error) error {
	return onThread(func() error {
		ns, err := netns.GetFromPath(h.path())
		if err != nil {
			return fmt.Errorf("network namespace %s: %w", h.Namespace, err)
		}
		defer ns.Close() //nolint:errcheck // A leaked descriptor ends with the test.
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("entering network namespace %s: %w", h.Namespace, err)
		}
		return f()
	})
}

// Command is a command that runs inside the namespace. It uses nsenter, because
// "ip netns exec" remounts /sys and hides the cgroups.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + h.path(), "--", name}, args...)...)
}

// Dial connects from inside the namespace.
func (h *Host) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = h.Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens inside the namespace.
func (h *Host) Listen(network, address string) (listener net.Listener, err error) {
	err = h.Do(func() error {
		listener, err = net.Listen(network, address)
		return err
	})
	return listener, err
}

// ListenPacket listens for packets inside the namespace.
func (h *Host) ListenPacket(network, address string) (conn net.PacketConn, err error) {
	err = h.Do(func() error {
		conn, err = net.ListenPacket(network, address)
		return err
	})
	return conn, err
}

// Route adds a route inside the namespace.
func (h *Host) Route(dst netip.Prefix, via netip.Addr) error {
	return h.Do(func() error {
		return netlink.RouteReplace(&netlink.Route{Dst: ipNet(dst), Gw: via.AsSlice()})
	})
}

// Sysctl sets a value under /proc/sys, such as net/ipv4/ip_forward, inside the
// namespace.
func (h *Host) Sysctl(key, value string) error {
	return h.Do(func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0) })
}

func setUp(ifname string, addrs []netip.Prefix) error {
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("interface %s: %w", ifname, err)
	}
	for _, addr := range addrs {
		a := &netlink.Addr{IPNet: ipNet(addr)}
		if addr.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("address %s of %s: %w", addr, ifname, err)
		}
	}
	return netlink.LinkSetUp(link)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// onThread runs f on a thread of its own, which ends with f: no other goroutine
// ever sees the namespace that f entered.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread never ends, and would hold the namespace as long as
			// the process lives: occupy it while another does the work.
			defer runtime.UnlockOSThread()
			done <- onThread(f)
			return
		}
		done <- f()
	}()
	return <-done
}
