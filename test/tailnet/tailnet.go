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

// Package tailnet runs a real tailnet on a lab's network: a coordination server,
// a DERP relay and STUN on one host, and devices, each with a real tailscaled in
// a network namespace of its own.
package tailnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"tailscale.com/derp/derpserver"
	"tailscale.com/net/stun"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"

	"github.com/tailnet-egress/egress-operator/test/cluster/binaries"
	"github.com/tailnet-egress/egress-operator/test/netlab"
	"github.com/tailnet-egress/egress-operator/test/tailnet/control"
)

// The lab's network. Addresses below 100 are for others on it, such as a
// cluster's nodes.
const (
	serverAddr  = "172.29.0.100"
	networkBits = 24
	firstDevice = 101
	lastDevice  = 254
)

// DefaultDomain is the tailnet's MagicDNS domain unless told otherwise.
const DefaultDomain = "tail1234.ts.net"

// maxStateDir leaves room for a socket's name in the 107 characters of its path.
const maxStateDir = 90

const (
	stunPort   = 3478
	derpRegion = 900
)

// Options say where a tailnet runs.
type Options struct {
	// Lab is the network, which the tailnet does not close.
	Lab *netlab.Lab
	// StateDir is the absolute path of the tailnet's own directory, of at most 90
	// characters because it holds sockets.
	StateDir string
	// Tailscaled is the path of a static tailscaled; built when empty.
	Tailscaled string
	// Domain is DefaultDomain when empty.
	Domain string
	// Log is told what happens; nil for nobody.
	Log io.Writer
}

// Tailnet is a running tailnet.
type Tailnet struct {
	opts    Options
	control *control.Server
	host    *netlab.Host
	authKey string
	closers []func() error

	mu       sync.Mutex
	devices  map[string]*Device
	hosts    map[int]bool // those in use
	lastHost int
}

// Start brings a tailnet without devices up. What a crash left in the state
// directory is removed first.
func Start(ctx context.Context, opts Options) (*Tailnet, error) {
	if !filepath.IsAbs(opts.StateDir) {
		return nil, fmt.Errorf("the state directory %q is not an absolute path", opts.StateDir)
	}
	if len(opts.StateDir) > maxStateDir {
		return nil, fmt.Errorf("the state directory's path %s is longer than %d characters, too long for sockets in it", opts.StateDir, maxStateDir)
	}
	opts.Domain = cmp.Or(opts.Domain, DefaultDomain)
	if opts.Log == nil {
		opts.Log = io.Discard
	}
	if err := Remove(opts.StateDir); err != nil {
		return nil, err
	}
	if opts.Tailscaled == "" {
		dir, err := binaries.Product(ctx, opts.Log, "tailscaled")
		if err != nil {
			return nil, err
		}
		opts.Tailscaled = filepath.Join(dir, "tailscaled")
	}
	if err := os.MkdirAll(filepath.Join(opts.StateDir, pidDir), 0o755); err != nil {
		return nil, err
	}
	t := &Tailnet{opts: opts, devices: map[string]*Device{}, hosts: map[int]bool{}, lastHost: firstDevice - 1}
	if err := t.serve(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the tailnet's servers: %w", err), t.Close())
	}
	return t, nil
}

// serve starts the servers on their host.
func (t *Tailnet) serve() error {
	addr := netip.MustParseAddr(serverAddr)
	host, err := t.opts.Lab.Host("control", netip.PrefixFrom(addr, networkBits))
	if err != nil {
		return err
	}
	t.host = host
	t.closers = append(t.closers, host.Close)
	t.control = control.New(control.Options{
		Domain: t.opts.Domain, URL: t.ControlURL(), DERPMap: derpMap(addr), Logf: t.logf,
	})
	t.authKey = t.control.AddAuthKey(control.AuthKey{Reusable: true}).Key
	if err := t.serveHTTP("80", t.control, nil); err != nil {
		return err
	}
	return errors.Join(t.serveDERP(), t.serveSTUN())
}

func derpMap(addr netip.Addr) *tailcfg.DERPMap {
	return &tailcfg.DERPMap{
		OmitDefaultRegions: true,
		Regions: map[int]*tailcfg.DERPRegion{derpRegion: {
			RegionID: derpRegion, RegionCode: "lab", RegionName: "Lab",
			Nodes: []*tailcfg.DERPNode{{
				Name: "lab1", RegionID: derpRegion,
				HostName: addr.String(), IPv4: addr.String(), IPv6: "none",
				STUNPort: stunPort, InsecureForTests: true,
			}},
		}},
	}
}

// serveDERP serves the relay over TLS. Its logger is silent: it names every
// packet that it drops.
func (t *Tailnet) serveDERP() error {
	relay := derpserver.New(key.NewNode(), func(string, ...any) {})
	t.closers = append(t.closers, relay.Close)
	config, err := selfSigned(netip.MustParseAddr(serverAddr))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/derp", derpserver.Handler(relay))
	mux.HandleFunc("/derp/probe", derpserver.ProbeHandler)
	mux.HandleFunc("/derp/latency-check", derpserver.ProbeHandler)
	mux.HandleFunc("/generate_204", derpserver.ServeNoContent)
	return t.serveHTTP("443", mux, config)
}

// serveSTUN answers every node with the address that its packet came from.
func (t *Tailnet) serveSTUN() error {
	packets, err := t.host.ListenPacket("udp4", net.JoinHostPort(serverAddr, fmt.Sprint(stunPort)))
	if err != nil {
		return err
	}
	t.closers = append(t.closers, packets.Close)
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := packets.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			tx, parseErr := stun.ParseBindingRequest(buf[:n])
			udp, isUDP := from.(*net.UDPAddr)
			if err != nil || parseErr != nil || !isUDP {
				continue
			}
			at := udp.AddrPort()
			_, _ = packets.WriteTo(stun.Response(tx, netip.AddrPortFrom(at.Addr().Unmap(), at.Port())), from)
		}
	}()
	return nil
}

// ControlURL is where nodes register.
func (t *Tailnet) ControlURL() string { return "http://" + serverAddr }

// AuthKey is a reusable auth key without tags.
func (t *Tailnet) AuthKey() string { return t.authKey }

// Domain is the MagicDNS domain.
func (t *Tailnet) Domain() string { return t.opts.Domain }

// Control is the coordination server, for what is not about one device.
func (t *Tailnet) Control() *control.Server { return t.control }

// SetRecords replaces the tailnet's extra DNS records: names, each with its
// addresses.
func (t *Tailnet) SetRecords(names map[string][]netip.Addr) {
	var records []tailcfg.DNSRecord
	for name, addrs := range names {
		for _, addr := range addrs {
			// An empty type means A or AAAA, as the address is.
			records = append(records, tailcfg.DNSRecord{Name: name, Value: addr.String()})
		}
	}
	t.control.SetRecords(records)
}

// Devices returns the devices by name.
func (t *Tailnet) Devices() []*Device {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*Device, 0, len(t.devices))
	for _, d := range t.devices {
		if d != nil {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b *Device) int { return cmp.Compare(a.Name(), b.Name()) })
	return out
}

// Device returns the device of that name.
func (t *Tailnet) Device(name string) (*Device, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.devices[name]
	if d == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoDevice, name)
	}
	return d, nil
}

// Close ends the devices and the servers, and removes their hosts.
func (t *Tailnet) Close() error {
	t.mu.Lock()
	devices := t.devices
	t.devices = map[string]*Device{}
	t.mu.Unlock()
	var errs []error
	for _, d := range devices {
		if d != nil {
			errs = append(errs, d.inst().close())
		}
	}
	for _, closer := range slices.Backward(t.closers) {
		errs = append(errs, closer())
	}
	t.closers = nil
	return errors.Join(errs...)
}

func (t *Tailnet) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(t.opts.Log, time.Now().Format("15:04:05.000 ")+format+"\n", args...)
}

// takeHost returns a number on the lab's network that no device has. Numbers come
// round again long after their last use.
func (t *Tailnet) takeHost() (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range lastDevice - firstDevice + 1 {
		t.lastHost++
		if t.lastHost > lastDevice {
			t.lastHost = firstDevice
		}
		if !t.hosts[t.lastHost] {
			t.hosts[t.lastHost] = true
			return t.lastHost, nil
		}
	}
	return 0, errors.New("the lab's network has no room for another device")
}

func (t *Tailnet) freeHost(number int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.hosts, number)
}
