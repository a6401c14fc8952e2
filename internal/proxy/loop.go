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

// Package proxy runs the egress proxy of one Pod: it follows its config, the
// tailnet and the Pod's interfaces, keeps the kernel's rules as they should be,
// and acknowledges what it did.
package proxy

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/tailnet-egress/egress-operator/internal/proxy/drain"
	"github.com/tailnet-egress/egress-operator/internal/proxy/health"
	"github.com/tailnet-egress/egress-operator/internal/proxy/resolve"
	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/internal/proxy/tailnet"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

const (
	// tickTime is how often the kernel is compared with what is wanted.
	tickTime = 5 * time.Second
	// patience is how long a proxy that has just started waits for a first netmap
	// before it acknowledges that it has none: the acknowledgement of its earlier
	// life still holds while its rules are in the kernel.
	patience = 2 * time.Second
	// loginAfter is how long the device must have been logged out before a changed
	// key is tried.
	loginAfter = 3 * time.Second
	// Pauses between attempts that fail.
	minRetry = 250 * time.Millisecond
	maxRetry = 10 * time.Second
)

// kernel holds the rules; nft.Programmer is one.
type kernel interface {
	Apply(rules.Ruleset) (changed bool, err error)
	Verify() (repaired bool, err error)
}

// flows is the kernel's table of connections; conntrack.Table is one.
type flows interface {
	Delete(stale func(rules.Flow) bool) (int, error)
	DeleteUntranslated(pod []netip.Addr, served func(protocol uint8, port uint16) bool) (int, error)
	Active() (int, error)
}

// links are the Pod's interfaces.
type links interface {
	// Forward switches forwarding on wherever it is off, and tells whether the Pod
	// forwards IPv6.
	Forward() (ipv6 bool, err error)
	// TunnelUp is whether the tunnel's interface is there and up.
	TunnelUp() bool
}

// daemon is tailscaled; tailnet.Client is one.
type daemon interface {
	SetPrefs(context.Context, tailnet.Prefs) error
	Login(context.Context) error
}

// keeper holds values in an API object; ack.Keeper is one.
type keeper interface {
	Want(map[string][]byte)
}

// identity is what the proxy knows of its Pod.
type identity struct {
	podUID     string
	podIPs     []netip.Addr
	healthPort uint16
	tailscaled uint16 // its UDP port
	drainCap   time.Duration
}

// loop is the one goroutine that decides and acts. Everything else posts to it.
type loop struct {
	identity
	kernel kernel
	flows  flows
	links  links
	daemon daemon
	ack    keeper
	device keeper // nil where the device is not to be published
	health *health.Health
	log    *slog.Logger

	// events are what happened since; each runs in the loop.
	events chan func()
	// stops are requests to stop.
	stops chan struct{}

	started  time.Time
	config   *proxyconfig.Config
	invalid  []proxyconfig.TargetError
	problems map[string]string // of configs, by source
	tailnet  tailnet.State
	families resolve.Families
	tunnelUp bool
	forward  error // why not every interface forwards

	changed  bool // since the rules were compiled
	applied  *applied
	failure  error // of the last attempt
	retry    backoff
	staleDue bool // conntrack entries may have to go
	// strayDue is whether flows may have begun while there were no rules.
	strayDue bool

	prefs  errand
	login  errand
	logins logins

	drain *drain.Drain
	reset bool

	targets  []proxyconfig.TargetAck // as acknowledged
	reported report
}

// applied is what the kernel holds.
type applied struct {
	generation int64
	ruleset    rules.Ruleset
	resolved   []resolve.Resolved
	reset      bool
}

// backoff is when a failed attempt may be made again.
type backoff struct {
	at    time.Time
	pause time.Duration
}

func (b *backoff) failed(now time.Time) {
	b.pause = min(max(2*b.pause, minRetry), maxRetry)
	b.at = now.Add(b.pause)
}

func (b *backoff) succeeded() { *b = backoff{} }

// errand is a call that runs beside the loop, one at a time.
type errand struct {
	running bool
	retry   backoff
}

func (e *errand) due(now time.Time) bool { return !e.running && !now.Before(e.retry.at) }

// post hands an event to the loop.
func (l *loop) post(ctx context.Context, event func()) {
	select {
	case l.events <- event:
	case <-ctx.Done():
	}
}

// runLoop is the loop. It ends when ctx does or when it has drained after a stop.
func (l *loop) runLoop(ctx context.Context) {
	l.started = time.Now()
	l.problems = map[string]string{}
	l.lookAtLinks()
	ticker := time.NewTicker(tickTime)
	defer ticker.Stop()
	for {
		now := time.Now()
		l.health.Beat(now)
		if l.drainStep(now) == drain.Done {
			return
		}
		l.reconcile(now)
		l.report(now)
		l.runErrands(ctx, now)

		wake := time.NewTimer(l.untilWake(now))
		select {
		case <-ctx.Done():
			return
		case event := <-l.events:
			event()
			l.others()
		case <-ticker.C:
			l.lookAtLinks()
			l.verify()
		case <-wake.C:
		case <-l.stops:
			if l.stop() {
				return
			}
		}
		wake.Stop()
	}
}

// others takes the events that wait behind one, so that a burst costs one change
// of the kernel.
func (l *loop) others() {
	for range cap(l.events) {
		select {
		case event := <-l.events:
			event()
		default:
			return
		}
	}
}

// untilWake is the time until something is due that no event announces.
func (l *loop) untilWake(now time.Time) time.Duration {
	next := now.Add(tickTime)
	for _, at := range []time.Time{l.retry.at, l.prefs.retry.at, l.login.retry.at, l.started.Add(patience), l.logins.since.Add(loginAfter)} {
		if at.After(now) && at.Before(next) {
			next = at
		}
	}
	if l.drain != nil && next.After(now.Add(drain.Poll)) {
		next = now.Add(drain.Poll)
	}
	return next.Sub(now)
}

// stop begins to drain, and is true where that was asked for before.
func (l *loop) stop() (atOnce bool) {
	if l.drain != nil {
		l.log.Info("Was told to stop again, stopping at once")
		l.resetFlows()
		return true
	}
	l.log.Info("Started to drain", "cap", l.drainCap)
	l.drain = drain.Begin(time.Now(), l.drainCap)
	return false
}

func (l *loop) drainStep(now time.Time) drain.Phase {
	if l.drain == nil {
		return drain.Serving
	}
	open, err := l.flows.Active()
	if err != nil {
		l.log.Error("Could not count open flows", "err", err)
		open = -1
	}
	phase := l.drain.Step(now, open)
	switch {
	case phase == drain.Resetting && !l.reset:
		l.log.Info("Reset flows that were still open at the drain's cap", "flows", open)
		l.resetFlows()
	case phase == drain.Done:
		l.log.Info("Drained", "flowsLeft", open)
	}
	return phase
}

// resetFlows makes the next packet of every flow be answered by a reset.
func (l *loop) resetFlows() {
	l.reset, l.changed = true, true
	l.reconcile(time.Now())
}
