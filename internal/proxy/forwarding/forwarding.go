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

// Package forwarding switches on IP forwarding for the interfaces of a Pod
// without write access to /proc/sys.
package forwarding

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// From linux/if_link.h and linux/ip.h. A devconf is an index into the values
// that the kernel lists, counted from 1.
const (
	iflaInetConf      = 1 // IFLA_INET_CONF
	devconfForwarding = 1 // IPV4_DEVCONF_FORWARDING
	devconfRPFilter   = 8 // IPV4_DEVCONF_RP_FILTER
	rpFilterStrict    = 1
	rpFilterLoose     = 2
)

const listAttempts = 5

const ipv6Forwarding = "/proc/sys/net/ipv6/conf/all/forwarding"

// conf is the IPv4 configuration of an interface.
type conf struct {
	index  int32
	name   string
	values []uint32
}

func (c conf) value(devconf int) uint32 {
	if devconf > len(c.values) {
		return 0
	}
	return c.values[devconf-1]
}

// EnableIPv4 switches IPv4 forwarding on for every interface but the loopback,
// and reports those that it had to change. It works in the network namespace of
// the calling thread, needs CAP_NET_ADMIN there, and reads back what it set. An
// error about one interface does not keep the others from being switched on.
//
// Where the source of packets is checked strictly, it makes the check loose: the
// strict one drops clients whose address a subnet route covers.
func EnableIPv4() (changed []string, err error) {
	before, err := list()
	if err != nil {
		return nil, err
	}
	strict, err := strictEverywhere()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, c := range before {
		want := map[int]uint32{}
		if c.value(devconfForwarding) != 1 {
			want[devconfForwarding] = 1
		}
		// The greater of this value and that of "all" is in force.
		if filter := c.value(devconfRPFilter); filter == rpFilterStrict || strict && filter < rpFilterLoose {
			want[devconfRPFilter] = rpFilterLoose
		}
		if len(want) == 0 {
			continue
		}
		if err := set(c.index, want); err != nil {
			// An interface that is gone needs no forwarding.
			if !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("switching on IPv4 forwarding for %s: %w", c.name, err))
			}
			continue
		}
		changed = append(changed, c.name)
	}
	if len(changed) > 0 {
		errs = append(errs, check())
	}
	return changed, errors.Join(errs...)
}

// IPv4Enabled is whether every interface but the loopback forwards IPv4.
func IPv4Enabled() (bool, error) {
	all, err := list()
	if err != nil {
		return false, err
	}
	for _, c := range all {
		if c.value(devconfForwarding) != 1 {
			return false, nil
		}
	}
	return true, nil
}

func check() error {
	on, err := IPv4Enabled()
	if err == nil && !on {
		err = errors.New("the kernel did not keep IPv4 forwarding switched on")
	}
	return err
}

// IPv6Enabled is whether the Pod forwards IPv6. Nothing but a sysctl of the Pod
// (net.ipv6.conf.all.forwarding) can switch that on; without IPv6 in the kernel
// it is false.
func IPv6Enabled() (bool, error) {
	value, err := os.ReadFile(ipv6Forwarding)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading IPv6 forwarding: %w", err)
	}
	return string(bytes.TrimSpace(value)) == "1", nil
}

func strictEverywhere() (bool, error) {
	value, err := os.ReadFile("/proc/sys/net/ipv4/conf/all/rp_filter")
	if err != nil {
		return false, fmt.Errorf("reading the check of source addresses: %w", err)
	}
	return string(bytes.TrimSpace(value)) == "1", nil
}

// set asks the kernel for IPv4 settings of one interface.
func set(index int32, values map[int]uint32) error {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = index
	request.AddData(message)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	settings := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(iflaInetConf, nil)
	for devconf, value := range values {
		settings.AddRtAttr(devconf, nl.Uint32Attr(value))
	}
	request.AddData(spec)
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// list reads the IPv4 settings of every interface but the loopback.
func list() ([]conf, error) {
	var messages [][]byte
	err := error(netlink.ErrDumpInterrupted)
	// An interface that comes or goes meanwhile spoils the list.
	for range listAttempts {
		request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		messages, err = request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var all []conf
	for _, m := range messages {
		info := nl.DeserializeIfInfomsg(m)
		if info.Flags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		c, err := parse(m[info.Len():])
		if err != nil {
			return nil, fmt.Errorf("reading interface %d: %w", info.Index, err)
		}
		c.index = info.Index
		all = append(all, c)
	}
	return all, nil
}

func parse(data []byte) (conf, error) {
	var c conf
	attrs, err := nl.ParseRouteAttr(data)
	if err != nil {
		return conf{}, err
	}
	for _, a := range attrs {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_IFNAME:
			c.name = string(bytes.TrimRight(a.Value, "\x00"))
		case unix.IFLA_AF_SPEC:
			values, err := inetConf(a)
			if err != nil {
				return conf{}, err
			}
			c.values = values
		}
	}
	return c, nil
}

func inetConf(spec syscall.NetlinkRouteAttr) ([]uint32, error) {
	families, err := nl.ParseRouteAttr(spec.Value)
	if err != nil {
		return nil, err
	}
	for _, family := range families {
		if family.Attr.Type&^unix.NLA_F_NESTED != unix.AF_INET {
			continue
		}
		attrs, err := nl.ParseRouteAttr(family.Value)
		if err != nil {
			return nil, err
		}
		for _, a := range attrs {
			if a.Attr.Type != iflaInetConf {
				continue
			}
			values := make([]uint32, len(a.Value)/4)
			for i := range values {
				values[i] = binary.NativeEndian.Uint32(a.Value[4*i:])
			}
			return values, nil
		}
	}
	return nil, nil
}

// Watch tells when an interface may have appeared or changed, in the network
// namespace of the calling thread: tailscale0 is made anew whenever tailscaled
// restarts, with forwarding off. Several changes may become one signal. The
// channel is closed when ctx ends or the kernel no longer tells; after that, and
// where there may have been a gap, EnableIPv4 is due.
func Watch(ctx context.Context) (<-chan struct{}, error) {
	updates := make(chan netlink.LinkUpdate)
	done := make(chan struct{})
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		return nil, fmt.Errorf("watching interfaces: %w", err)
	}
	signal := make(chan struct{}, 1)
	go func() {
		defer close(signal)
		defer func() {
			close(done)
			// The sender ends once nobody keeps it waiting.
			for range updates {
			}
		}()
		for {
			select {
			case <-ctx.Done():
				return
			case update, open := <-updates:
				if !open {
					return
				}
				if update.Header.Type != unix.RTM_NEWLINK {
					continue
				}
				select {
				case signal <- struct{}{}:
				default:
				}
			}
		}
	}()
	return signal, nil
}
