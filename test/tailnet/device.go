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
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"tailscale.com/client/local"

	"github.com/tailnet-egress/egress-operator/test/netlab"
	"github.com/tailnet-egress/egress-operator/test/tailnet/control"
)

// Errors of the names of devices.
var (
	ErrNoDevice     = errors.New("no such device")
	ErrDeviceExists = errors.New("there is such a device already")
	ErrBadName      = errors.New("a device's name is a DNS label in lower case")
)

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// DeviceOptions say how a device is.
type DeviceOptions struct {
	// AuthKey is the tailnet's own key when empty.
	AuthKey string
	// TCPPorts and UDPPorts have echo servers, besides EchoPort.
	TCPPorts, UDPPorts []uint16
	// AcceptRoutes makes the device use the routes of others.
	AcceptRoutes bool
	// RelayOnly makes it reachable through the DERP relay only.
	RelayOnly bool
}

// Device is a member of the tailnet, through all its lives.
type Device struct {
	t *Tailnet

	// acting is held by whatever changes the device.
	acting sync.Mutex

	mu     sync.Mutex
	name   string
	routes []netip.Prefix
	now    *instance
}

// AddDevice makes a device and returns once peers can reach it. The name is a
// DNS label.
func (t *Tailnet) AddDevice(ctx context.Context, name string, opts DeviceOptions) (*Device, error) {
	if !dnsLabel.MatchString(name) {
		return nil, fmt.Errorf("%w: %q", ErrBadName, name)
	}
	t.mu.Lock()
	_, taken := t.devices[name]
	if !taken {
		t.devices[name] = nil // Reserved until the device is up.
	}
	t.mu.Unlock()
	if taken {
		return nil, fmt.Errorf("%w: %s", ErrDeviceExists, name)
	}
	begun := time.Now()
	d := &Device{t: t, name: name}
	now, err := t.newInstance(ctx, name, d.Name, opts)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		delete(t.devices, name)
		return nil, err
	}
	d.now = now
	t.devices[name] = d
	t.logf("Device %s came up after %s with %v", d.FQDN(), time.Since(begun).Round(time.Millisecond), d.IPs())
	return d, nil
}

func (t *Tailnet) drop(d *Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.devices[d.Name()] == d {
		delete(t.devices, d.Name())
	}
}

func (d *Device) inst() *instance {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

// Name is the first label of the device's name.
func (d *Device) Name() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.name
}

// Node is what the control server knows of the device.
func (d *Device) Node() (control.Node, error) { return d.t.control.Node(d.inst().id) }

// FQDN is the device's full name without a trailing dot; "" once it is removed.
func (d *Device) FQDN() string {
	n, err := d.Node()
	if err != nil {
		return ""
	}
	return n.FQDN
}

// IPs are its tailnet addresses, IPv4 first; none once it is removed.
func (d *Device) IPs() []netip.Addr {
	n, err := d.Node()
	if err != nil {
		return nil
	}
	return n.Addresses
}

// Host is the device's namespace, another one after Recreate.
func (d *Device) Host() *netlab.Host { return d.inst().host }

// Local is a client of the device's tailscaled.
func (d *Device) Local() *local.Client { return d.inst().client() }

// Socket is where the device's tailscaled listens for local clients.
func (d *Device) Socket() string { return d.inst().socket }

// Remove takes the device out of the tailnet, at once, and ends it.
func (d *Device) Remove(context.Context) error {
	d.acting.Lock()
	defer d.acting.Unlock()
	i := d.inst()
	err := d.t.control.Delete(i.id)
	d.t.drop(d)
	d.t.logf("Device %s was removed", d.Name())
	if errors.Is(err, control.ErrNotFound) {
		err = nil
	}
	return errors.Join(err, i.close())
}

// Recreate rebuilds the device: another machine with other addresses gets its
// name. The other one comes up under a name of its own first; then a single
// change of the netmap removes the old node and renames the new one. Recreate
// returns when that was.
func (d *Device) Recreate(ctx context.Context) (time.Time, error) {
	d.acting.Lock()
	defer d.acting.Unlock()
	old := d.inst()
	now, err := d.t.newInstance(ctx, d.Name(), d.Name, old.opts)
	if err != nil {
		return time.Time{}, err
	}
	if err := d.furnish(ctx, now, old); err != nil {
		return time.Time{}, errors.Join(err, d.t.control.Delete(now.id), now.close())
	}
	changed := time.Now()
	if err := d.t.control.Replace(old.id, now.id); err != nil {
		return time.Time{}, errors.Join(err, now.close())
	}
	d.mu.Lock()
	d.now = now
	d.mu.Unlock()
	d.t.logf("Device %s was re-created with %v", d.FQDN(), d.IPs())
	return changed, old.close()
}

// furnish gives a new life what the one before had behind it.
func (d *Device) furnish(ctx context.Context, now, before *instance) error {
	for _, sub := range before.subnets() {
		if _, err := now.addSubnetHost(sub.Name, sub.Addr); err != nil {
			return err
		}
	}
	if len(d.routes) == 0 {
		return nil
	}
	return now.advertise(ctx, d.routes)
}

// Readdress gives the running device other addresses.
func (d *Device) Readdress() error { return d.t.control.Readdress(d.inst().id) }

// Expire ends the validity of the device's key.
func (d *Device) Expire() error {
	return d.t.control.SetKeyExpiry(d.inst().id, time.Now().Add(-time.Second))
}

// Renew makes the device's key valid for ever.
func (d *Device) Renew() error { return d.t.control.SetKeyExpiry(d.inst().id, time.Time{}) }

// Rename gives the device another name in the tailnet and in its answers.
func (d *Device) Rename(name string) error {
	d.acting.Lock()
	defer d.acting.Unlock()
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	if !dnsLabel.MatchString(name) {
		return fmt.Errorf("%w: %q", ErrBadName, name)
	}
	if _, taken := d.t.devices[name]; taken {
		return fmt.Errorf("%w: %s", ErrDeviceExists, name)
	}
	if err := d.t.control.Rename(d.now.id, name); err != nil {
		return err
	}
	delete(d.t.devices, d.name)
	d.t.devices[name] = d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.name = name
	return nil
}

// Listen opens one more echo server; network is tcp or udp.
func (d *Device) Listen(network string, port uint16) error {
	d.acting.Lock()
	defer d.acting.Unlock()
	i := d.inst()
	if err := i.echo.listen(network, port); err != nil {
		return err
	}
	ports := i.opts.ports(network)
	*ports = append(slices.Clone(*ports), port)
	return nil
}

// Unlisten closes an echo server and its connections.
func (d *Device) Unlisten(network string, port uint16) {
	d.acting.Lock()
	defer d.acting.Unlock()
	i := d.inst()
	i.echo.unlisten(network, port)
	ports := i.opts.ports(network)
	*ports = slices.DeleteFunc(slices.Clone(*ports), func(p uint16) bool { return p == port })
}

func (o *DeviceOptions) ports(network string) *[]uint16 {
	if network == udp {
		return &o.UDPPorts
	}
	return &o.TCPPorts
}

// AdvertiseRoutes makes the device serve these routes and no others, approved by
// the control server. Recreate keeps them.
func (d *Device) AdvertiseRoutes(ctx context.Context, routes ...netip.Prefix) error {
	d.acting.Lock()
	defer d.acting.Unlock()
	if err := d.inst().advertise(ctx, routes); err != nil {
		return err
	}
	d.routes = slices.Clone(routes)
	return d.t.control.Approve(d.inst().id, routes)
}

// ApproveRoutes replaces the routes that the control server lets the device
// serve; none withdraws the approval of all.
func (d *Device) ApproveRoutes(routes ...netip.Prefix) error {
	return d.t.control.Approve(d.inst().id, routes)
}

// AddSubnetHost puts a host behind the device, on a network of the two; addr is
// the host's address and the network, such as 192.168.7.10/24. Peers reach it
// once the device advertises a route to it.
func (d *Device) AddSubnetHost(name string, addr netip.Prefix) (*SubnetHost, error) {
	d.acting.Lock()
	defer d.acting.Unlock()
	return d.inst().addSubnetHost(name, addr)
}

// StopTailscaled ends the device's tailscaled; its node stays. With kill it has
// no time to say goodbye.
func (d *Device) StopTailscaled(kill bool) {
	d.acting.Lock()
	defer d.acting.Unlock()
	signal := syscall.SIGTERM
	if kill {
		signal = syscall.SIGKILL
	}
	d.inst().stopTailscaled(signal)
}

// StartTailscaled starts it again, with its state, and returns once peers can
// reach the device.
func (d *Device) StartTailscaled(ctx context.Context) error {
	d.acting.Lock()
	defer d.acting.Unlock()
	return d.inst().startTailscaled(ctx)
}

// Reconnect cuts the device's connection to the control server and returns once
// it has another one.
func (d *Device) Reconnect(ctx context.Context) error {
	d.acting.Lock()
	defer d.acting.Unlock()
	before, err := d.Node()
	if err != nil {
		return err
	}
	if err := d.t.control.Disconnect(before.ID); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the device did not reconnect"))
	defer cancel()
	_, err = d.t.control.Wait(ctx, func(n control.Node) bool {
		return n.ID == before.ID && n.Streams > before.Streams
	})
	return err
}

func (d *Device) String() string {
	var ips []string
	for _, ip := range d.IPs() {
		ips = append(ips, ip.String())
	}
	return d.FQDN() + " " + strings.Join(ips, " ")
}
