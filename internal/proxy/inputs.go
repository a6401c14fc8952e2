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
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tailnet-egress/egress-operator/internal/proxy/tailnet"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

// setConfig takes a config from one of its sources. The newer one is in force,
// and one that cannot be read replaces none.
func (l *loop) setConfig(source string, data []byte) {
	config, invalid, err := proxyconfig.Decode(data)
	if err != nil {
		problem := fmt.Sprintf("The config from %s cannot be used: %v", source, err)
		if l.problems[source] != problem {
			l.log.Error("Kept the last good config", "source", source, "err", err)
		}
		l.problems[source] = problem
		return
	}
	delete(l.problems, source)
	if l.config != nil && config.Generation <= l.config.Generation {
		return
	}
	l.log.Info("Took a config", "source", source, "generation", config.Generation, "targets", len(config.Targets), "invalid", len(invalid))
	l.config, l.invalid, l.changed = &config, invalid, true
	l.retry.succeeded()
	l.health.Generation.Set(float64(config.Generation))
}

// setTailnet takes a state of the tailnet.
func (l *loop) setTailnet(state tailnet.State) {
	before := l.tailnet
	if state.Answers && !before.Answers {
		// A tailscaled that has just started read the config file itself.
		l.logins.tried = l.logins.current
	}
	switch {
	case state.Running || !state.Answers:
		l.logins.since = time.Time{}
	case l.logins.since.IsZero():
		l.logins.since = time.Now()
	}
	if before.Running != state.Running || before.Problem != state.Problem {
		l.log.Info("Saw tailscaled change", "running", state.Running, "problem", state.Problem)
	}
	l.tailnet = state
	if state.Netmap != nil {
		l.health.NetmapUpdates.Inc()
		l.changed = true
	}
	l.lookAtLinks()
	if l.device != nil && state.Running && state.Device.ID != "" {
		l.device.Want(deviceKeys(state.Device))
	}
}

func deviceKeys(d tailnet.Device) map[string][]byte {
	ips, err := json.Marshal(d.IPs)
	if err != nil {
		// Addresses always encode.
		panic(err)
	}
	return map[string][]byte{
		proxyconfig.DeviceIDKey: []byte(d.ID), proxyconfig.DeviceFQDNKey: []byte(d.FQDN), proxyconfig.DeviceIPsKey: ips,
	}
}

// lookAtLinks switches forwarding on for interfaces that are new.
func (l *loop) lookAtLinks() {
	ipv6, err := l.links.Forward()
	if (err == nil) != (l.forward == nil) {
		l.changed = true
		if err != nil {
			l.log.Error("Could not switch on forwarding", "err", err)
		}
	}
	l.forward = err
	l.tunnelUp = l.links.TunnelUp()
	families := l.families
	families.IPv4, families.IPv6 = false, false
	for _, ip := range l.podIPs {
		families.IPv4 = families.IPv4 || ip.Is4()
		families.IPv6 = families.IPv6 || ip.Is6() && ipv6
	}
	if families != l.families {
		l.families, l.changed = families, true
	}
}

// verify compares the kernel's rules with what was applied.
func (l *loop) verify() {
	if l.applied == nil || l.failure != nil {
		return
	}
	repaired, err := l.kernel.Verify()
	if err != nil {
		l.log.Error("Could not compare the kernel's rules", "err", err)
		l.changed = true
		return
	}
	if repaired {
		l.log.Info("Put back rules that others had changed")
		l.health.Repairs.Inc()
		l.staleDue, l.strayDue = true, true
	}
}

// logins is what is known of the key in tailscaled's config file.
type logins struct {
	// current is the hash of the file, tried of the one that tailscaled has used.
	current, tried [sha256.Size]byte
	hasKey         bool
	// since is when the device was first seen logged out; zero while it is not.
	since time.Time
}

// setTailscaledConfig takes the content of tailscaled's config file.
func (l *loop) setTailscaledConfig(data []byte) {
	var file struct{ AuthKey string }
	l.logins.hasKey = json.Unmarshal(data, &file) == nil && file.AuthKey != ""
	first := l.logins.current == [sha256.Size]byte{}
	l.logins.current = sha256.Sum256(data)
	if first {
		l.logins.tried = l.logins.current
	}
}

// runErrands makes tailscaled be as the config wants it.
func (l *loop) runErrands(ctx context.Context, now time.Time) {
	if !l.tailnet.Answers {
		return
	}
	if want, ok := l.wantedPrefs(); ok && want != l.tailnet.Prefs && l.prefs.due(now) {
		l.beside(ctx, &l.prefs, func(ctx context.Context) error { return l.daemon.SetPrefs(ctx, want) }, func() {
			l.log.Info("Changed tailscaled's settings", "acceptRoutes", want.AcceptRoutes, "hostname", want.Hostname)
			l.tailnet.Prefs = want
		})
	}
	since := l.logins.since
	if !since.IsZero() && !now.Before(since.Add(loginAfter)) && l.logins.hasKey && l.logins.current != l.logins.tried && l.login.due(now) {
		trying := l.logins.current
		l.beside(ctx, &l.login, l.daemon.Login, func() {
			l.log.Info("Made tailscaled log in with the key of its changed config")
			l.logins.tried = trying
		})
	}
}

// beside makes a call beside the loop.
func (l *loop) beside(ctx context.Context, e *errand, call func(context.Context) error, done func()) {
	e.running = true
	go func() {
		err := call(ctx)
		l.post(ctx, func() {
			e.running = false
			if err != nil {
				e.retry.failed(time.Now())
				l.log.Error("Could not change tailscaled, trying again", "err", err)
				return
			}
			e.retry.succeeded()
			done()
		})
	}()
}

// wantedPrefs are what the config and the targets need.
func (l *loop) wantedPrefs() (tailnet.Prefs, bool) {
	if l.config == nil {
		return tailnet.Prefs{}, false
	}
	want := tailnet.Prefs{AcceptRoutes: l.config.AcceptRoutes, Hostname: l.config.Hostname}
	if want.Hostname == "" {
		want.Hostname = l.tailnet.Prefs.Hostname
	}
	if l.applied != nil {
		for _, r := range l.applied.resolved {
			want.AcceptRoutes = want.AcceptRoutes || r.ViaRoute
		}
	}
	return want, true
}
