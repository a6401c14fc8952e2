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

// Package tailnet follows the tailnet through tailscaled's LocalAPI.
package tailnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"tailscale.com/client/local"
	"tailscale.com/ipn"
	"tailscale.com/tailcfg"

	"github.com/tailnet-egress/egress-operator/internal/proxy/resolve"
)

const (
	// callTimeout ends a call that tailscaled does not answer.
	callTimeout = 5 * time.Second
	// Pauses between attempts to reach tailscaled.
	minPause = 50 * time.Millisecond
	maxPause = time.Second
	// settlePoll is how often devices are asked for that cannot be reached yet: what
	// makes them reachable is not announced.
	settlePoll = 100 * time.Millisecond

	// watchMask asks for the state, the prefs and the netmap at first, then for
	// every change. Patches are asked for because without that each becomes a whole
	// peer; what they change (online, endpoints, DERP) matters to no target.
	watchMask = ipn.NotifyInitialState | ipn.NotifyInitialPrefs | ipn.NotifyInitialNetMap | ipn.NotifyInitialHealthState |
		ipn.NotifyPeerChanges | ipn.NotifyPeerPatches
)

// State is what is known of the tailnet at a time.
type State struct {
	// Answers is whether tailscaled answers.
	Answers bool
	// Running is whether the device is logged in and tailscaled up.
	Running bool
	// NeedsLogin is whether the device needs a key.
	NeedsLogin bool
	// Problem says in a sentence why it is not running.
	Problem string
	// Netmap is the last known; nil before the first.
	Netmap *resolve.Netmap
	Device Device
	// Prefs are those in force while tailscaled answers.
	Prefs Prefs
}

// Device is this node of the tailnet; without an ID before it is registered.
type Device struct {
	ID   string
	FQDN string
	// IPs are IPv4 first.
	IPs []netip.Addr
}

// Equal is whether two devices are the same.
func (d Device) Equal(other Device) bool {
	return d.ID == other.ID && d.FQDN == other.FQDN && slices.Equal(d.IPs, other.IPs)
}

// Prefs are the settings of tailscaled that a config can change.
type Prefs struct {
	AcceptRoutes bool
	Hostname     string
}

// Client of one tailscaled.
type Client struct {
	local *local.Client
	log   *slog.Logger
}

// New is a client of the tailscaled that listens on a Unix socket.
func New(socket string, log *slog.Logger) *Client {
	return &Client{local: &local.Client{Socket: socket, UseSocketOnly: true}, log: log}
}

// SetPrefs changes settings while tailscaled runs.
func (c *Client) SetPrefs(ctx context.Context, p Prefs) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.local.EditPrefs(ctx, &ipn.MaskedPrefs{
		Prefs:       ipn.Prefs{RouteAll: p.AcceptRoutes, Hostname: p.Hostname},
		RouteAllSet: true, HostnameSet: p.Hostname != "",
	})
	if err != nil {
		return fmt.Errorf("changing tailscaled's settings: %w", err)
	}
	return nil
}

// Login makes tailscaled read its config file again and log in with the key that
// is there. Reading it alone does not log in; starting takes the key from the
// config (ipnlocal, startLocked), so that no key passes through here.
func (c *Client) Login(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	reloaded, err := c.local.ReloadConfig(ctx)
	if err == nil && !reloaded {
		err = errors.New("it has no config file")
	}
	if err != nil {
		return fmt.Errorf("making tailscaled read its config: %w", err)
	}
	if err := c.local.Start(ctx, ipn.Options{}); err != nil {
		return fmt.Errorf("making tailscaled log in: %w", err)
	}
	return nil
}

// Watch calls changed with the state, first and whenever it is another, until
// ctx ends. It outlives tailscaled and keeps the last netmap.
func (c *Client) Watch(ctx context.Context, changed func(State)) {
	v := &view{}
	pause := minPause
	told := false
	for {
		answered, err := c.follow(ctx, v, changed)
		if ctx.Err() != nil {
			return
		}
		if answered {
			pause, told = minPause, false
		}
		if !told {
			c.log.Info("Lost tailscaled, trying on", "err", err)
			// What a restarted tailscaled says of itself is news.
			v.state, v.login, v.fatal = ipn.NoState, "", ""
			state := v.snapshot(time.Now())
			state.Answers, state.Problem = false, "tailscaled does not answer: "+err.Error()
			changed(state)
			told = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// follow reads one stream of messages until it ends.
func (c *Client) follow(ctx context.Context, v *view, changed func(State)) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	bus, err := c.local.WatchIPNBus(ctx, watchMask)
	if err != nil {
		return false, short(err)
	}
	defer bus.Close() //nolint:errcheck // Nothing was written.
	messages := make(chan ipn.Notify)
	var failure error
	go func() {
		defer close(messages)
		for {
			n, err := bus.Next()
			if err != nil {
				failure = err
				return
			}
			select {
			case messages <- n:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		due := timerAt(c.due(v, time.Now()))
		select {
		case n, open := <-messages:
			due.Stop()
			if !open {
				return answered, short(failure)
			}
			first := !answered
			answered = true
			differs, reread := v.apply(n, time.Now())
			if differs || first {
				changed(v.snapshot(time.Now()))
			}
			if reread && c.rereadRecords(ctx, v) {
				changed(v.snapshot(time.Now()))
			}
		case at := <-due.C:
			if c.askForSettling(ctx, v, at) {
				changed(v.snapshot(time.Now()))
			}
		}
	}
}

// due is when a view changes without a message; zero for never.
func (c *Client) due(v *view, now time.Time) time.Time {
	if len(v.settling(now)) > 0 {
		return now.Add(settlePoll)
	}
	return v.next(now)
}

// askForSettling looks whether new devices can be reached by now.
func (c *Client) askForSettling(ctx context.Context, v *view, now time.Time) (changed bool) {
	ids := v.settling(now)
	changed = len(ids) == 0 // Something expired or settled.
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		node, err := c.local.PeerByID(ctx, id)
		cancel()
		if err == nil && v.differ([]*tailcfg.Node{node}, nil, now) {
			changed = true
		}
	}
	return changed
}

func (c *Client) rereadRecords(ctx context.Context, v *view) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	dns, err := c.local.DNSConfig(ctx)
	if err != nil {
		c.log.Info("Could not read the tailnet's DNS records", "err", err)
		return false
	}
	return v.setRecords(dns.ExtraRecords)
}

func (v *view) snapshot(now time.Time) State {
	return State{
		Answers: true, Running: v.state == ipn.Running, NeedsLogin: v.state == ipn.NeedsLogin,
		Problem: v.problem(), Netmap: v.netmap(now), Device: v.device, Prefs: v.prefs,
	}
}

func (v *view) problem() string {
	problem := ""
	switch v.state {
	case ipn.Running:
		return ""
	case ipn.NeedsLogin:
		problem = "The device is not logged in and needs a valid auth key"
	case ipn.NeedsMachineAuth:
		problem = "The device waits to be approved by an admin of the tailnet"
	case ipn.Stopped:
		problem = "tailscaled was told to stop"
	default:
		problem = "tailscaled is connecting to the tailnet"
	}
	for _, why := range []string{v.fatal, v.login} {
		if why != "" {
			return problem + ": " + why
		}
	}
	return problem
}

// timerAt never fires where at is zero.
func timerAt(at time.Time) *time.Timer {
	if at.IsZero() {
		timer := time.NewTimer(time.Hour)
		timer.Stop()
		return timer
	}
	return time.NewTimer(time.Until(at))
}

// short leaves out advice for people at a terminal, which spans several lines.
func short(err error) error {
	if err == nil {
		return errors.New("the connection ended")
	}
	line, _, more := strings.Cut(err.Error(), "\n")
	if !more {
		return err
	}
	return errors.New(line)
}
