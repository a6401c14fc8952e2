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

package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailnet-egress/egress-operator/internal/proxy/ack"
	"github.com/tailnet-egress/egress-operator/internal/proxy/configfile"
	"github.com/tailnet-egress/egress-operator/internal/proxy/conntrack"
	"github.com/tailnet-egress/egress-operator/internal/proxy/forwarding"
	"github.com/tailnet-egress/egress-operator/internal/proxy/health"
	"github.com/tailnet-egress/egress-operator/internal/proxy/nft"
	"github.com/tailnet-egress/egress-operator/internal/proxy/object"
	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/internal/proxy/tailnet"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

// eventQueue is how many events may wait for the loop.
const eventQueue = 64

// Options say where the proxy finds and puts things.
type Options struct {
	// ConfigFile is the mounted config; tailscaled's config file is beside it.
	ConfigFile string
	// ConfigObject holds the same config; without a name it is not watched.
	ConfigObject object.Ref
	// AckName is the ConfigMap to acknowledge in.
	AckName string
	// SecretName is the Secret in which tailscaled keeps its state, and in which the
	// device is published; "" for none.
	SecretName string
	// Socket is tailscaled's.
	Socket string
	// HealthAddress is where probes and metrics are served, such as ":9002".
	HealthAddress string
	// TailscaledPort is tailscaled's UDP port.
	TailscaledPort uint16
	// DrainCap is how long open flows may go on after a stop.
	DrainCap time.Duration

	// PodUID and PodIPs are the Pod's own, Namespace is where its objects are.
	PodUID    string
	PodIPs    []netip.Addr
	Namespace string

	// API is how to reach the API server; nil for not at all.
	API *rest.Config `json:"-"`
	Log *slog.Logger
}

// Run is the proxy. It works in the network namespace of the process and needs
// CAP_NET_ADMIN there. The first stop makes it drain and then return, the second
// makes it return at once, as the end of ctx does. An error says that it could
// not start. What it programmed stays in the kernel.
func Run(ctx context.Context, o Options, stops <-chan struct{}) error {
	l, healthListener, err := o.open()
	if err != nil {
		return err
	}
	l.stops = make(chan struct{}, 2)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	start := func(f func()) { running.Go(f) }

	server := &http.Server{Handler: l.health.Handler(), ReadHeaderTimeout: 5 * time.Second}
	start(func() {
		if err := server.Serve(healthListener); !errors.Is(err, http.ErrServerClosed) {
			o.Log.Error("Could not serve health", "err", err)
		}
	})
	defer server.Close() //nolint:errcheck // It is over.

	if err := o.watchAPI(ctx, l, start); err != nil {
		return err
	}
	if err := watchLinks(ctx, l, start); err != nil {
		return err
	}
	start(func() { o.watchFiles(ctx, l) })
	start(func() {
		tailnet.New(o.Socket, o.Log).Watch(ctx, func(s tailnet.State) { l.post(ctx, func() { l.setTailnet(s) }) })
	})
	start(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-stops:
				select {
				case l.stops <- struct{}{}:
				default:
				}
			}
		}
	})
	l.runLoop(ctx)
	return nil
}

// open connects to the kernel and makes the loop.
func (o Options) open() (*loop, net.Listener, error) {
	_, port, err := net.SplitHostPort(o.HealthAddress)
	if err != nil {
		return nil, nil, fmt.Errorf("health address %q: %w", o.HealthAddress, err)
	}
	listener, err := net.Listen("tcp", o.HealthAddress)
	if err != nil {
		return nil, nil, fmt.Errorf("listening for health checks: %w", err)
	}
	number, err := net.LookupPort("tcp", port)
	if err != nil {
		return nil, nil, fmt.Errorf("health address %q: %w", o.HealthAddress, err)
	}
	programmer, err := nft.Open()
	if err != nil {
		return nil, nil, err
	}
	table, err := conntrack.Open()
	if err != nil {
		return nil, nil, err
	}
	return &loop{
		identity: identity{
			podUID: o.PodUID, podIPs: o.PodIPs, healthPort: uint16(number), tailscaled: o.TailscaledPort, drainCap: o.DrainCap,
		},
		kernel: programmer, flows: table, links: podLinks{log: o.Log}, daemon: tailnet.New(o.Socket, o.Log),
		ack: nowhere{}, health: health.New(), log: o.Log, events: make(chan func(), eventQueue),
	}, listener, nil
}

func (o Options) watchFiles(ctx context.Context, l *loop) {
	dir, name := filepath.Split(o.ConfigFile)
	configfile.Watch(ctx, filepath.Clean(dir), []string{name, proxyconfig.TailscaledKey}, func(file string, content []byte) {
		l.post(ctx, func() {
			if file == name {
				l.setConfig("file", content)
			} else {
				l.setTailscaledConfig(content)
			}
		})
	})
}

// watchAPI follows the proxy's objects and keeps its values in them.
func (o Options) watchAPI(ctx context.Context, l *loop, start func(func())) error {
	if o.API == nil {
		o.Log.Info("Found no API server to reach, the config file has to do and nothing is acknowledged")
		return nil
	}
	client, err := object.New(o.API, o.Namespace, o.Log)
	if err != nil {
		return err
	}
	watchers := map[object.Ref][]func(*object.Content){}
	keep := func(ref object.Ref) *ack.Keeper {
		k := ack.NewKeeper(apiObject{client, ref}, o.Log.With("kind", ref.Kind, "name", ref.Name))
		start(func() { k.Run(ctx) })
		return k
	}
	if o.AckName != "" {
		ref := object.Ref{Kind: object.ConfigMap, Name: o.AckName}
		k := keep(ref)
		l.ack = k
		watchers[ref] = append(watchers[ref], k.Saw)
	}
	if o.SecretName != "" {
		ref := object.Ref{Kind: object.Secret, Name: o.SecretName}
		k := keep(ref)
		l.device = k
		state := &ack.State{}
		watchers[ref] = append(watchers[ref], func(c *object.Content) {
			k.Fill(state.Saw(c))
			k.Saw(c)
		})
	}
	if o.ConfigObject.Name != "" {
		watchers[o.ConfigObject] = append(watchers[o.ConfigObject], func(c *object.Content) {
			if c != nil && len(c.Data[proxyconfig.ConfigKey]) > 0 {
				data := c.Data[proxyconfig.ConfigKey]
				l.post(ctx, func() { l.setConfig("API", data) })
			}
		})
	}
	for ref, all := range watchers {
		start(func() {
			client.Watch(ctx, ref, func(c *object.Content) {
				for _, seen := range all {
					seen(c)
				}
			})
		})
	}
	return nil
}

type apiObject struct {
	client *object.Client
	ref    object.Ref
}

func (o apiObject) Patch(ctx context.Context, data map[string][]byte) (object.Content, error) {
	return o.client.Patch(ctx, o.ref, data)
}

// nowhere keeps nothing.
type nowhere struct{}

func (nowhere) Want(map[string][]byte) {}

// watchLinks tells the loop of interfaces that appear; after a gap in what the
// kernel tells, the loop's tick has to do until the watch is renewed.
func watchLinks(ctx context.Context, l *loop, start func(func())) error {
	changes, err := forwarding.Watch(ctx)
	if err != nil {
		return err
	}
	start(func() {
		for ctx.Err() == nil {
			for range changes {
				l.post(ctx, l.lookAtLinks)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(tickTime):
			}
			if changes, err = forwarding.Watch(ctx); err != nil {
				l.log.Error("Could not watch interfaces", "err", err)
				closed := make(chan struct{})
				close(closed)
				changes = closed
			}
		}
	})
	return nil
}

// podLinks are the interfaces of the process's network namespace.
type podLinks struct{ log *slog.Logger }

func (p podLinks) Forward() (ipv6 bool, err error) {
	changed, err := forwarding.EnableIPv4()
	if len(changed) > 0 {
		p.log.Info("Switched on IPv4 forwarding", "interfaces", changed)
	}
	ipv6, err6 := forwarding.IPv6Enabled()
	return ipv6, errors.Join(err, err6)
}

func (podLinks) TunnelUp() bool {
	link, err := net.InterfaceByName(rules.Tunnel)
	return err == nil && link.Flags&net.FlagUp != 0
}
