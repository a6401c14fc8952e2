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
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tailnet-egress/egress-operator/internal/proxy/resolve"
	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

// reconcile makes the kernel do what the config and the tailnet say now. Without
// a config or a netmap the last rules stay.
func (l *loop) reconcile(now time.Time) {
	if l.changed && l.config != nil && l.tailnet.Netmap != nil && !now.Before(l.retry.at) {
		l.program(now)
	}
	if l.staleDue && l.applied != nil && !now.Before(l.retry.at) {
		l.removeStale(now)
	}
}

func (l *loop) program(now time.Time) {
	begun := time.Now()
	resolved := resolve.Resolve(*l.config, *l.tailnet.Netmap, l.families)
	input := l.input(resolved)
	l.refuseReserved(input, resolved)
	ruleset := rules.Compile(l.input(resolved))
	changed, err := l.kernel.Apply(ruleset)
	if err != nil {
		l.health.ApplyErrors.Inc()
		l.log.Error("Could not program the kernel, the last good rules stay", "err", err)
		l.retry.failed(now)
		l.failure = err
		l.acknowledge(resolved)
		return
	}
	l.changed, l.failure = false, nil
	l.retry.succeeded()
	l.staleDue = l.staleDue || changed || l.applied == nil
	l.strayDue = l.strayDue || l.applied == nil
	l.applied = &applied{generation: l.config.Generation, ruleset: ruleset, resolved: resolved, reset: l.reset}
	if changed {
		l.health.ApplySeconds.Observe(time.Since(begun).Seconds())
		l.log.Info("Programmed the kernel", "targets", len(resolved), "duration", time.Since(begun).Round(10*time.Microsecond))
	}
	l.acknowledge(resolved)
}

// removeStale ends flows that would go elsewhere if they began now.
func (l *loop) removeStale(now time.Time) {
	stale := l.applied.ruleset.Stale
	if l.applied.reset {
		stale = func(rules.Flow) bool { return true }
	}
	n, err := l.flows.Delete(stale)
	strays := 0
	if err == nil && l.strayDue {
		strays, err = l.flows.DeleteUntranslated(l.podIPs, l.serves)
	}
	if err != nil {
		l.log.Error("Could not remove stale flows", "err", err)
		l.retry.failed(now)
		return
	}
	l.staleDue, l.strayDue = false, false
	if n+strays > 0 {
		l.log.Info("Removed flows that led elsewhere", "moved", n, "unforwarded", strays)
	}
}

// serves is whether the Pod itself serves a port.
func (l *loop) serves(protocol uint8, port uint16) bool {
	return protocol == rules.TCP && port == l.healthPort || protocol == rules.UDP && port == l.tailscaled
}

// input is what the rules are compiled from.
func (l *loop) input(resolved []resolve.Resolved) rules.Input {
	in := rules.Input{
		HealthPort: l.healthPort, TailscaledPort: l.tailscaled,
		Families: rules.Families{IPv4: l.families.IPv4, IPv6: l.families.IPv6},
		Reset:    l.reset,
		Targets:  make([]rules.Target, 0, len(resolved)),
	}
	in.Own4, in.Own6 = split(l.tailnet.Netmap.Own)
	in.Pod4, in.Pod6 = split(l.podIPs)
	for i, t := range l.config.Targets {
		target := rules.Target{ID: t.ID, AllPorts: t.AllPorts, Listeners: t.Listeners}
		target.Addr4, target.Addr6 = split(resolved[i].Addrs)
		in.Targets = append(in.Targets, target)
	}
	return in
}

// split is the first address of each family.
func split(addrs []netip.Addr) (v4, v6 netip.Addr) {
	for _, a := range addrs {
		switch {
		case a.Is4() && !v4.IsValid():
			v4 = a
		case a.Is6() && !v6.IsValid():
			v6 = a
		}
	}
	return v4, v6
}

// refuseReserved makes targets with a listener that the Pod itself serves
// invalid.
func (l *loop) refuseReserved(in rules.Input, resolved []resolve.Resolved) {
	for i, t := range l.config.Targets {
		for _, listener := range t.Listeners {
			if in.Reserved(listener) {
				resolved[i] = resolve.Resolved{ID: t.ID, Revision: t.Revision, Reason: proxyconfig.InvalidTarget, Message: fmt.Sprintf(
					"Port %s/%d is used by the proxy itself, choose another one", listener.Protocol, listener.Port)}
				break
			}
		}
	}
}

// acknowledge notes what became of each target. Where the kernel refused, what is
// still as it was in the last good rules stays acknowledged.
func (l *loop) acknowledge(resolved []resolve.Resolved) {
	targets := make([]proxyconfig.TargetAck, 0, len(resolved)+len(l.invalid))
	for i, r := range resolved {
		t := proxyconfig.TargetAck{ID: r.ID, Revision: r.Revision, Addresses: r.Addrs, Reason: r.Reason, Message: r.Message}
		switch {
		case l.failure != nil && !l.inForce(i, r):
			t.Addresses, t.Reason, t.Message = nil, proxyconfig.ProgrammingFailed, fmt.Sprintf("The kernel refused the rules: %v", l.failure)
		case l.forward != nil:
			t.Addresses, t.Reason, t.Message = nil, proxyconfig.ProgrammingFailed, fmt.Sprintf("Forwarding could not be switched on: %v", l.forward)
		}
		targets = append(targets, t)
	}
	for _, bad := range l.invalid {
		targets = append(targets, proxyconfig.TargetAck{ID: bad.ID, Revision: bad.Revision, Reason: proxyconfig.InvalidTarget,
			Message: fmt.Sprintf("The proxy's config has an invalid entry: %v", bad.Err)})
	}
	slices.SortStableFunc(targets, func(a, b proxyconfig.TargetAck) int { return strings.Compare(a.ID, b.ID) })
	targets = slices.CompactFunc(targets, func(a, b proxyconfig.TargetAck) bool { return a.ID == b.ID })
	if !slices.EqualFunc(l.targets, targets, sameAck) {
		l.logTargets(targets)
		l.targets, l.reported.targets = targets, false
	}
	l.countTargets()
}

// inForce is whether the last good rules do the same for a target.
func (l *loop) inForce(i int, r resolve.Resolved) bool {
	if l.applied == nil {
		return false
	}
	old := l.applied.resolved
	if i >= len(old) || old[i].ID != r.ID {
		i = slices.IndexFunc(old, func(o resolve.Resolved) bool { return o.ID == r.ID })
	}
	return i >= 0 && old[i].Revision == r.Revision && slices.Equal(old[i].Addrs, r.Addrs)
}

func sameAck(a, b proxyconfig.TargetAck) bool {
	return a.ID == b.ID && a.Revision == b.Revision && a.Reason == b.Reason && a.Message == b.Message && slices.Equal(a.Addresses, b.Addresses)
}

// maxTargetLines keeps a change of thousands of targets from filling the log.
const maxTargetLines = 10

func (l *loop) logTargets(targets []proxyconfig.TargetAck) {
	before := proxyconfig.Ack{Targets: l.targets}
	lines := 0
	for _, t := range targets {
		if old, found := before.Target(t.ID); found && sameAck(old, t) {
			continue
		}
		if lines++; lines > maxTargetLines {
			l.log.Info("Changed more targets than are listed here")
			return
		}
		if len(t.Addresses) > 0 {
			l.log.Info("Resolved a target", "target", t.ID, "addresses", t.Addresses)
		} else {
			l.log.Info("Refused a target", "target", t.ID, "reason", t.Reason, "message", t.Message)
		}
	}
}

func (l *loop) countTargets() {
	l.health.Targets.Reset()
	for _, t := range l.targets {
		state := string(t.Reason)
		if len(t.Addresses) > 0 {
			state = "Resolved"
		}
		l.health.Targets.WithLabelValues(state).Inc()
	}
	mappings := 0
	if l.applied != nil {
		for _, t := range []rules.Table{l.applied.ruleset.IPv4, l.applied.ruleset.IPv6} {
			mappings += len(t.Elements)
			if t.All.IsValid() {
				mappings++
			}
		}
	}
	l.health.Mappings.Set(float64(mappings))
}
