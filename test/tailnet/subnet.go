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

package tailnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tailnet-egress/egress-operator/test/netlab"
)

// SubnetHost is a host behind a device, which is no member of the tailnet. It
// has the same servers as a device.
type SubnetHost struct {
	Name string
	// Addr is the host's address and its network.
	Addr netip.Prefix

	host *netlab.Host
	echo *echo
}

// addSubnetHost joins a new namespace to the device's by a network of their own.
func (i *instance) addSubnetHost(name string, addr netip.Prefix) (*SubnetHost, error) {
	if err := i.deviceEnd(addr); err != nil {
		return nil, err
	}
	number := len(i.subnets())
	host, err := netlab.NewHost(fmt.Sprintf("%s-s%d", i.host.Namespace, number))
	if err != nil {
		return nil, err
	}
	sub := &SubnetHost{Name: name, Addr: addr, host: host}
	gateway, err := i.join(host, fmt.Sprintf("lan%d", number), addr)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if addr.Addr().Is6() {
		all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if err := host.Route(all, gateway); err != nil {
		return nil, errors.Join(fmt.Errorf("a route back from %s: %w", name, err), host.Close())
	}
	if sub.echo, err = newEcho(host, func() string { return name }); err != nil {
		return nil, errors.Join(err, host.Close())
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.subnetHosts = append(i.subnetHosts, sub)
	return sub, nil
}

func (i *instance) subnets() []*SubnetHost {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.subnetHosts)
}

// deviceEnd checks that a host with that address can be put behind the device.
func (i *instance) deviceEnd(addr netip.Prefix) error {
	if addr.IsSingleIP() || addr.Addr() == addr.Masked().Addr() {
		return fmt.Errorf("%s is no host's address with its network, such as 192.168.7.10/24", addr)
	}
	for _, other := range i.subnets() {
		if other.Addr.Overlaps(addr) {
			return fmt.Errorf("%s overlaps the network of %s behind the same device", addr, other.Name)
		}
	}
	return nil
}

// join makes a veth pair between the device and the host, and returns the
// device's address on it.
func (i *instance) join(host *netlab.Host, ifname string, addr netip.Prefix) (netip.Addr, error) {
	gateway := addr.Masked().Addr().Next()
	if gateway == addr.Addr() {
		gateway = gateway.Next()
	}
	ns, err := netns.GetFromName(host.Namespace)
	if err != nil {
		return gateway, err
	}
	defer ns.Close() //nolint:errcheck // A leaked descriptor ends with the test.
	err = i.host.Do(func() error {
		veth := &netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: ifname},
			PeerName:      "eth0",
			PeerNamespace: netlink.NsFd(ns),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return address(ifname, netip.PrefixFrom(gateway, addr.Bits()))
	})
	if err == nil {
		err = host.Do(func() error { return address("eth0", addr) })
	}
	if err != nil {
		return gateway, fmt.Errorf("joining %s to its device: %w", host.Namespace, err)
	}
	return gateway, nil
}

func address(ifname string, addr netip.Prefix) error {
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(addr.String())
	if err != nil {
		return err
	}
	if addr.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link, a); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func (s *SubnetHost) close() error {
	s.echo.close()
	return s.host.Close()
}
