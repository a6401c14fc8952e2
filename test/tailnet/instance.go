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
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"tailscale.com/client/local"
	"tailscale.com/ipn"
	"tailscale.com/tailcfg"

	"github.com/tailnet-egress/egress-operator/test/netlab"
	"github.com/tailnet-egress/egress-operator/test/tailnet/control"
)

// startTimeout bounds how long a tailscaled may take until peers can reach it.
const startTimeout = 60 * time.Second

// instance is one life of a device: a namespace, a tailscaled and a node.
type instance struct {
	t      *Tailnet
	opts   DeviceOptions
	number int
	host   *netlab.Host
	dir    string
	socket string
	echo   *echo
	proc   *process
	id     tailcfg.NodeID

	mu          sync.Mutex
	subnetHosts []*SubnetHost
}

// newInstance makes a life and returns once peers can reach it.
func (t *Tailnet) newInstance(ctx context.Context, hostname string, name func() string, opts DeviceOptions) (*instance, error) {
	number, err := t.takeHost()
	if err != nil {
		return nil, err
	}
	addr := netip.MustParseAddr(serverAddr).As4()
	addr[3] = byte(number)
	host, err := t.opts.Lab.Host(fmt.Sprintf("d%d", number), netip.PrefixFrom(netip.AddrFrom4(addr), networkBits))
	if err != nil {
		t.freeHost(number)
		return nil, fmt.Errorf("a host for %s: %w", hostname, err)
	}
	i := &instance{
		t: t, opts: opts, number: number, host: host,
		dir:    filepath.Join(t.opts.StateDir, fmt.Sprintf("d%d", number)),
		socket: filepath.Join(t.opts.StateDir, fmt.Sprintf("d%d.sock", number)),
	}
	if err := i.start(ctx, hostname, name); err != nil {
		err = fmt.Errorf("starting device %s: %w", hostname, err)
		if i.id != 0 {
			err = errors.Join(err, t.control.Delete(i.id))
		}
		return nil, errors.Join(err, i.close())
	}
	return i, nil
}

func (i *instance) start(ctx context.Context, hostname string, name func() string) error {
	if err := os.RemoveAll(i.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(i.dir, 0o755); err != nil {
		return err
	}
	if err := i.writeConfig(hostname); err != nil {
		return err
	}
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := i.host.Sysctl(key, "1"); err != nil {
			return err
		}
	}
	// It leads nowhere: without a default route, tailscaled cuts its connections
	// at every change of an interface.
	err := i.host.Route(netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.MustParseAddr(serverAddr))
	if err != nil {
		return fmt.Errorf("a default route: %w", err)
	}
	if i.echo, err = newEcho(i.host, name); err != nil {
		return err
	}
	for _, port := range i.opts.TCPPorts {
		err = errors.Join(err, i.echo.listen(tcp, port))
	}
	for _, port := range i.opts.UDPPorts {
		err = errors.Join(err, i.echo.listen(udp, port))
	}
	if err != nil {
		return err
	}
	return i.startTailscaled(ctx)
}

func (i *instance) writeConfig(hostname string) error {
	raw, err := json.Marshal(map[string]any{
		"Version": "alpha0", "Locked": false,
		"ServerURL":    i.t.ControlURL(),
		"AuthKey":      cmp.Or(i.opts.AuthKey, i.t.authKey),
		"Hostname":     hostname,
		"acceptDNS":    false,
		"acceptRoutes": i.opts.AcceptRoutes,
		// The devices' own rules stay out of the tests' way, and a namespace
		// needs no iptables.
		"NetfilterMode": "off",
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(i.dir, "config.json"), raw, 0o600)
}

// startTailscaled starts the process and waits until peers can reach the node.
func (i *instance) startTailscaled(ctx context.Context) error {
	if i.proc != nil && i.proc.running() {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not reachable within %s", startTimeout))
	defer cancel()
	// The process outlives the context: it is ended by stop.
	cmd := i.host.Command(context.WithoutCancel(ctx), i.t.opts.Tailscaled,
		"--config="+filepath.Join(i.dir, "config.json"), "--statedir="+i.dir,
		"--socket="+i.socket, "--tun=tailscale0", "--port=41641")
	cmd.Env = append(os.Environ(), "TS_NO_LOGS_NO_SUPPORT=true", "TS_LOGS_DIR="+i.dir)
	if i.opts.RelayOnly {
		cmd.Env = append(cmd.Env, "TS_DEBUG_ALWAYS_USE_DERP=true")
	}
	before, _ := i.t.control.Node(i.id) // None at the first start.
	record := filepath.Join(i.t.opts.StateDir, pidDir, fmt.Sprintf("d%d", i.number))
	var err error
	if i.proc, err = startProcess(cmd, record, filepath.Join(i.dir, "tailscaled.log")); err != nil {
		return err
	}
	stableID, err := i.waitRunning(ctx)
	if err != nil {
		return err
	}
	for _, n := range i.t.control.Nodes() {
		if n.StableID == stableID {
			i.id = n.ID
		}
	}
	_, err = i.t.control.Wait(ctx, func(n control.Node) bool {
		return n.ID == i.id && n.Streams > before.Streams &&
			n.Reachable && (i.opts.RelayOnly || len(n.Endpoints) > 0)
	})
	return err
}

func (i *instance) waitRunning(ctx context.Context) (tailcfg.StableNodeID, error) {
	for {
		status, err := i.client().StatusWithoutPeers(ctx)
		if err == nil && status.BackendState == ipn.Running.String() && status.Self != nil {
			return status.Self.ID, nil
		}
		state := "it does not answer yet"
		if err == nil {
			state = status.BackendState
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for tailscaled (%s; log in %s): %w", state, i.dir, context.Cause(ctx))
		case <-i.proc.done:
			return "", fmt.Errorf("tailscaled ended; log in %s", i.dir)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (i *instance) client() *local.Client {
	return &local.Client{Socket: i.socket, UseSocketOnly: true}
}

func (i *instance) stopTailscaled(signal syscall.Signal) {
	if i.proc != nil {
		i.proc.stop(signal)
	}
}

// close ends everything of this life but its node.
func (i *instance) close() error {
	i.stopTailscaled(syscall.SIGKILL)
	var errs []error
	for _, sub := range i.subnets() {
		errs = append(errs, sub.close())
	}
	if i.echo != nil {
		i.echo.close()
	}
	errs = append(errs, i.host.Close(), os.RemoveAll(i.socket))
	i.t.freeHost(i.number)
	return errors.Join(errs...)
}

// advertise tells the node's routes to the control server and waits until it
// knows.
func (i *instance) advertise(ctx context.Context, routes []netip.Prefix) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the control server was not told of the routes"))
	defer cancel()
	_, err := i.client().EditPrefs(ctx, &ipn.MaskedPrefs{
		Prefs: ipn.Prefs{AdvertiseRoutes: routes}, AdvertiseRoutesSet: true,
	})
	if err != nil {
		return fmt.Errorf("advertising %v: %w", routes, err)
	}
	_, err = i.t.control.Wait(ctx, func(n control.Node) bool {
		return n.ID == i.id && len(n.Advertised) == len(routes) &&
			!slices.ContainsFunc(routes, func(p netip.Prefix) bool { return !slices.Contains(n.Advertised, p) })
	})
	return err
}
