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
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

// report is what was last acknowledged, as far as it can be compared at no cost.
type report struct {
	any, targets        bool // whether there was one, and with these targets
	generation          int64
	connected, draining bool
	message             string
	own                 string
}

// report acknowledges what changed: after the kernel, never before.
func (l *loop) report(now time.Time) {
	connected, why := l.connected()
	l.reportHealth(connected, why)
	if l.tailnet.Netmap == nil && now.Before(l.started.Add(patience)) {
		return
	}
	next := report{any: true, targets: true, connected: connected, draining: l.drain != nil, message: l.message(why)}
	if l.applied != nil {
		next.generation = l.applied.generation
	}
	var own []netip.Addr
	if l.tailnet.Netmap != nil {
		own = l.tailnet.Netmap.Own
		for _, a := range own {
			next.own += a.String() + " "
		}
	}
	if next == l.reported {
		return
	}
	l.reported = next
	data, err := l.encode(proxyconfig.Ack{
		PodUID: l.podUID, PodIPs: l.podIPs, ConfigGeneration: next.generation,
		Connected: next.connected, Message: next.message, TailnetIPs: own, Draining: next.draining, Targets: l.targets,
	})
	if err != nil {
		l.log.Error("Could not encode the acknowledgement", "err", err)
		return
	}
	l.ack.Want(map[string][]byte{proxyconfig.AckKey: data})
}

// encode leaves the sentences out where there is no room for them.
func (l *loop) encode(a proxyconfig.Ack) ([]byte, error) {
	data, err := a.Encode()
	if err == nil {
		return data, nil
	}
	a.Targets = slices.Clone(a.Targets)
	for i := range a.Targets {
		a.Targets[i].Message = ""
	}
	return a.Encode()
}

func (l *loop) connected() (connected bool, why string) {
	switch {
	case !l.tailnet.Running:
		if l.tailnet.Problem == "" {
			return false, "tailscaled has not answered yet"
		}
		return false, l.tailnet.Problem
	case !l.tunnelUp:
		return false, "Interface " + rules.Tunnel + " is not up"
	}
	return true, ""
}

func (l *loop) message(why string) string {
	var parts []string
	for _, source := range slices.Sorted(maps.Keys(l.problems)) {
		parts = append(parts, l.problems[source])
	}
	if l.config == nil && len(parts) == 0 {
		parts = append(parts, "There is no config yet")
	}
	if why != "" {
		parts = append(parts, why)
	}
	return strings.Join(parts, "; ")
}

func (l *loop) reportHealth(connected bool, why string) {
	value := 0.0
	if connected {
		value = 1
	}
	l.health.Connected.Set(value)
	switch {
	case l.drain != nil:
		l.health.SetNotReady("The proxy is draining")
	case !connected:
		l.health.SetNotReady(why)
	case l.applied == nil:
		l.health.SetNotReady("No rules are programmed yet")
	case l.forward != nil:
		l.health.SetNotReady("Forwarding could not be switched on: " + l.forward.Error())
	default:
		l.health.SetReady()
	}
}
