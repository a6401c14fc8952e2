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
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailnet-egress/egress-operator/internal/proxy/health"
	"github.com/tailnet-egress/egress-operator/internal/proxy/resolve"
	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/internal/proxy/tailnet"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

var addr = netip.MustParseAddr

// world is all that a loop acts on. What happens is written into one list, so
// that tests see the order.
type world struct {
	mu     sync.Mutex
	happen []string

	rules     rules.Ruleset
	applies   int
	applyErr  error
	verifyErr error
	damaged   bool
	open      int
	activeErr error
	deleteErr error
	flows     []rules.Flow
	strays    int

	ipv6       bool
	forwardErr error
	tunnelDown bool

	prefsErr, loginErr error
	ack                proxyconfig.Ack
	acks               int
	device             map[string][]byte
}

func (w *world) note(format string, args ...any) {
	w.happen = append(w.happen, fmt.Sprintf(format, args...))
}

func (w *world) Apply(r rules.Ruleset) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applies++
	if w.applyErr != nil {
		return false, w.applyErr
	}
	if w.rules.String() == r.String() {
		return false, nil
	}
	w.rules = r
	w.note("program %s", leads(r))
	return true, nil
}

// leads is where the listeners of a ruleset lead.
func leads(r rules.Ruleset) string {
	var out []string
	for _, t := range []rules.Table{r.IPv4, r.IPv6} {
		if t.All.IsValid() {
			out = append(out, "all>"+t.All.String())
		}
		for _, e := range t.Elements {
			out = append(out, fmt.Sprintf("%d>%s", e.Port, e.To))
		}
	}
	return strings.Join(out, " ")
}

func (w *world) Verify() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.verifyErr != nil {
		return false, w.verifyErr
	}
	repaired := w.damaged
	w.damaged = false
	if repaired {
		w.note("repair")
	}
	return repaired, nil
}

func (w *world) Delete(stale func(rules.Flow) bool) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deleteErr != nil {
		return 0, w.deleteErr
	}
	before := len(w.flows)
	w.flows = slices.DeleteFunc(w.flows, stale)
	if n := before - len(w.flows); n > 0 {
		w.note("delete %d flows", n)
	}
	return before - len(w.flows), nil
}

func (w *world) DeleteUntranslated(pod []netip.Addr, served func(uint8, uint16) bool) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(pod, addr("10.244.0.5")) || !served(rules.TCP, 9002) || !served(rules.UDP, 41641) || served(rules.UDP, 9002) {
		panic("asked for other flows")
	}
	n := w.strays
	w.strays = 0
	if n > 0 {
		w.note("delete %d strays", n)
	}
	return n, nil
}

func (w *world) Active() (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open, w.activeErr
}

func (w *world) Forward() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ipv6, w.forwardErr
}

func (w *world) TunnelUp() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.tunnelDown
}

func (w *world) SetPrefs(_ context.Context, p tailnet.Prefs) error {
	time.Sleep(10 * time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("prefs %t %s", p.AcceptRoutes, p.Hostname)
	return w.prefsErr
}

func (w *world) Login(context.Context) error {
	time.Sleep(10 * time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("login")
	return w.loginErr
}

type ackKeeper struct{ *world }

func (k ackKeeper) Want(data map[string][]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ack, err := proxyconfig.DecodeAck(data[proxyconfig.AckKey])
	if err != nil {
		panic(err)
	}
	k.acks++
	k.ack = ack
	k.note("ack %s", summary(ack))
}

type deviceKeeper struct{ *world }

func (k deviceKeeper) Want(data map[string][]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !maps.EqualFunc(k.device, data, slices.Equal) {
		k.note("device %s %s %s", data["device_id"], data["device_fqdn"], data["device_ips"])
	}
	k.device = data
}

// summary shows what an Ack is about, such as "g3 connected app/db=100.64.0.9".
func summary(a proxyconfig.Ack) string {
	parts := []string{fmt.Sprintf("g%d", a.ConfigGeneration)}
	if a.Connected {
		parts = append(parts, "connected")
	}
	if a.Draining {
		parts = append(parts, "draining")
	}
	for _, t := range a.Targets {
		value := string(t.Reason)
		for _, ip := range t.Addresses {
			value += ip.String()
		}
		parts = append(parts, t.ID+"="+value)
	}
	if a.Message != "" {
		parts = append(parts, "("+a.Message+")")
	}
	return strings.Join(parts, " ")
}

// bench is a running loop.
type bench struct {
	*world
	t      *testing.T
	l      *loop
	cancel context.CancelFunc
	done   chan struct{}
	stamp  time.Time
}

func start(t *testing.T, f func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		l := &loop{
			identity: identity{podUID: "uid", podIPs: []netip.Addr{addr("10.244.0.5")}, healthPort: 9002, tailscaled: 41641, drainCap: 20 * time.Second},
			kernel:   w, flows: w, links: w, daemon: w, ack: ackKeeper{w}, device: deviceKeeper{w},
			health: health.New(), log: slog.New(slog.DiscardHandler), events: make(chan func(), 64), stops: make(chan struct{}, 2),
		}
		ctx, cancel := context.WithCancel(t.Context())
		b := &bench{world: w, t: t, l: l, cancel: cancel, done: make(chan struct{})}
		go func() { l.runLoop(ctx); close(b.done) }()
		synctest.Wait()
		f(b)
		cancel()
		<-b.done
		time.Sleep(time.Minute) // Calls that were under way.
	})
}

func (b *bench) post(f func()) {
	b.l.post(b.t.Context(), f)
	synctest.Wait()
}

func (b *bench) with(f func(w *world)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b.world)
}

func (b *bench) applied() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.applies
}

func (b *bench) acked() proxyconfig.Ack {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ack
}

// expect is what has happened since the last call, in order.
func (b *bench) expect(want ...string) {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.happen, want) {
		b.t.Errorf("happened:\n  %s\nwant:\n  %s", strings.Join(b.happen, "\n  "), strings.Join(want, "\n  "))
	}
	b.happen = nil
}

func (b *bench) config(generation int64, targets ...proxyconfig.Target) {
	b.configOf(proxyconfig.Config{Generation: generation, Targets: targets})
}

func (b *bench) configOf(c proxyconfig.Config) {
	data, err := c.Encode()
	if err != nil {
		b.t.Fatal(err)
	}
	b.post(func() { b.l.setConfig("file", data) })
}

func target(id, fqdn string, port uint16) proxyconfig.Target {
	return proxyconfig.Target{ID: id, Destination: proxyconfig.Destination{FQDN: fqdn},
		Listeners: []proxyconfig.Listener{{Protocol: proxyconfig.TCP, Port: port, TargetPort: port}}}
}

func device(name, ip string) resolve.Peer {
	return resolve.Peer{ID: name + ip, Name: name, Addrs: []netip.Addr{addr(ip)}}
}

func running(peers ...resolve.Peer) tailnet.State {
	own := []netip.Addr{addr("100.64.0.1")}
	return tailnet.State{Answers: true, Running: true, Device: tailnet.Device{ID: "n1", FQDN: "me.example", IPs: own},
		Netmap: &resolve.Netmap{Own: own, Peers: peers}}
}

func (b *bench) tailnet(s tailnet.State) { b.post(func() { b.l.setTailnet(s) }) }

const published = `device n1 me.example ["100.64.0.1"]`

// up is the usual start: a target that resolves.
func (b *bench) up() {
	b.t.Helper()
	b.config(1, target("app/db", "db.example", 5432))
	b.tailnet(running(device("db.example", "100.64.0.9")))
	b.expect(published, "program 5432>100.64.0.9:5432", "ack g1 connected app/db=100.64.0.9")
}

func TestKernelFirstThenAck(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		if _, ready := b.l.health.Ready(); !ready {
			t.Error("not ready")
		}
		ack := b.acked()
		if ack.PodUID != "uid" || !slices.Equal(ack.PodIPs, b.l.podIPs) || !slices.Equal(ack.TailnetIPs, []netip.Addr{addr("100.64.0.1")}) {
			t.Errorf("ack %+v", ack)
		}
	})
}

func TestIdleDoesNothing(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		applies := b.applied()
		time.Sleep(time.Hour)
		b.expect()
		if n := b.applied() - applies; n != 0 {
			t.Errorf("compiled and applied %d times while nothing changed", n)
		}
		b.tailnet(running(device("db.example", "100.64.0.9"), device("other.example", "100.64.0.10")))
		b.expect()
	})
}

func TestTargetMovesAndComesLate(t *testing.T) {
	start(t, func(b *bench) {
		b.config(1, target("app/db", "db.example", 5432), target("app/later", "later.example", 80))
		b.tailnet(running(device("db.example", "100.64.0.9")))
		b.expect(published, "program 5432>100.64.0.9:5432", "ack g1 connected app/db=100.64.0.9 app/later=TargetNotFound")
		flow := func(port uint16, to string) rules.Flow {
			return rules.Flow{Protocol: rules.TCP, Port: port, To: netip.MustParseAddrPort(to), From: addr("100.64.0.1")}
		}
		b.with(func(w *world) { w.flows = []rules.Flow{flow(5432, "100.64.0.9:5432")} })
		b.tailnet(running(device("db.example", "100.64.0.9"), device("later.example", "100.64.0.7")))
		b.expect("program 80>100.64.0.7:80 5432>100.64.0.9:5432", "ack g1 connected app/db=100.64.0.9 app/later=100.64.0.7")
		b.tailnet(running(device("db.example", "100.64.0.20"), device("later.example", "100.64.0.7")))
		b.expect("program 80>100.64.0.7:80 5432>100.64.0.20:5432", "delete 1 flows", "ack g1 connected app/db=100.64.0.20 app/later=100.64.0.7")
		b.tailnet(running(device("later.example", "100.64.0.7")))
		b.expect("program 80>100.64.0.7:80", "ack g1 connected app/db=TargetNotFound app/later=100.64.0.7")
	})
}

func TestNothingIsAckedAsResolvedBeforeANetmap(t *testing.T) {
	start(t, func(b *bench) {
		b.config(1, target("app/db", "db.example", 5432))
		b.tailnet(tailnet.State{Answers: true, Problem: "tailscaled is connecting to the tailnet"})
		time.Sleep(patience - time.Millisecond)
		b.expect()
		time.Sleep(2 * time.Millisecond)
		b.expect("ack g0 (tailscaled is connecting to the tailnet)")
		if why, ready := b.l.health.Ready(); ready || why != "tailscaled is connecting to the tailnet" {
			t.Errorf("ready %t, %s", ready, why)
		}
		b.tailnet(running(device("db.example", "100.64.0.9")))
		b.expect(published, "program 5432>100.64.0.9:5432", "ack g1 connected app/db=100.64.0.9")
	})
}

func TestWithoutAConfig(t *testing.T) {
	start(t, func(b *bench) {
		b.tailnet(running())
		b.expect(published, "ack g0 connected (There is no config yet)")
		if why, ready := b.l.health.Ready(); ready || why != "No rules are programmed yet" {
			t.Errorf("ready %t, %s", ready, why)
		}
	})
}

func TestTheNewerConfigWins(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		b.config(3, target("app/db", "db.example", 3333))
		b.expect("program 3333>100.64.0.9:3333", "ack g3 connected app/db=100.64.0.9")
		b.config(2, target("app/db", "db.example", 2222))
		b.config(3, target("app/db", "db.example", 4444))
		b.expect()
		b.config(4)
		b.expect("program ", "ack g4 connected")
	})
}

func TestABadConfigReplacesNone(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		b.post(func() { b.l.setConfig("API", []byte(`{"version":2}`)) })
		b.expect("ack g1 connected app/db=100.64.0.9 (The config from API cannot be used: config: version 2 is not understood, want 1)")
		time.Sleep(time.Hour)
		b.expect()
		data, _ := proxyconfig.Config{Generation: 2, Targets: []proxyconfig.Target{target("app/db", "db.example", 80)}}.Encode()
		b.post(func() { b.l.setConfig("API", data) })
		b.expect("program 80>100.64.0.9:80", "ack g2 connected app/db=100.64.0.9")
	})
}

func TestABadTargetAffectsNoOther(t *testing.T) {
	start(t, func(b *bench) {
		loopback := target("b/bad", "", 80)
		loopback.Destination = proxyconfig.Destination{IP: addr("127.0.0.1")}
		b.config(1, target("a/good", "db.example", 5432), loopback, target("c/reserved", "db.example", 9002))
		b.tailnet(running(device("db.example", "100.64.0.9")))
		b.expect(published, "program 5432>100.64.0.9:5432", "ack g1 connected a/good=100.64.0.9 b/bad=InvalidTarget c/reserved=InvalidTarget")
		bad, _ := b.acked().Target("b/bad")
		if bad.Revision != loopback.Canonical().Revision || bad.Message != "The proxy's config has an invalid entry: destination 127.0.0.1 is not a unicast address" {
			t.Errorf("%+v", bad)
		}
		reserved, _ := b.acked().Target("c/reserved")
		if reserved.Revision != target("c/reserved", "db.example", 9002).Canonical().Revision || reserved.Message != "Port TCP/9002 is used by the proxy itself, choose another one" {
			t.Errorf("%+v", reserved)
		}
	})
}

func TestTheKernelRefuses(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		b.with(func(w *world) { w.applyErr = errors.New("no buffer space") })
		b.config(2, target("app/db", "db.example", 5432), target("app/new", "db.example", 80))
		b.expect("ack g1 connected app/db=100.64.0.9 app/new=ProgrammingFailed")
		if failed, _ := b.acked().Target("app/new"); failed.Message != "The kernel refused the rules: no buffer space" {
			t.Errorf("%+v", failed)
		}
		before := b.applied()
		time.Sleep(10 * time.Minute)
		b.expect()
		if n := b.applied() - before; n < 30 || n > 80 {
			t.Errorf("tried %d times in 10 minutes", n)
		}
		b.with(func(w *world) { w.applyErr = nil })
		time.Sleep(maxRetry)
		b.expect("program 80>100.64.0.9:80 5432>100.64.0.9:5432", "ack g2 connected app/db=100.64.0.9 app/new=100.64.0.9")
	})
}

func TestDamageIsRepaired(t *testing.T) {
	start(t, func(b *bench) {
		b.with(func(w *world) { w.strays = 3 }) // From before there were rules.
		b.config(1, target("app/db", "db.example", 5432))
		b.tailnet(running(device("db.example", "100.64.0.9")))
		b.expect(published, "program 5432>100.64.0.9:5432", "delete 3 strays", "ack g1 connected app/db=100.64.0.9")
		b.with(func(w *world) {
			w.damaged, w.strays = true, 2
			w.flows = []rules.Flow{{Protocol: rules.TCP, Port: 5432, To: netip.MustParseAddrPort("100.64.0.8:5432"), From: addr("100.64.0.1")}}
		})
		time.Sleep(tickTime)
		b.expect("repair", "delete 1 flows", "delete 2 strays")
		b.with(func(w *world) { w.deleteErr, w.damaged = errors.New("busy"), true })
		time.Sleep(tickTime)
		b.expect("repair")
		b.with(func(w *world) { w.deleteErr = nil; w.flows = make([]rules.Flow, 2) })
		time.Sleep(tickTime)
		b.expect("delete 2 flows")
	})
}

func TestTailscaledDies(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		last := running(device("db.example", "100.64.0.9"))
		last.Answers, last.Running, last.Problem = false, false, "tailscaled does not answer: connection refused"
		b.tailnet(last)
		b.expect("ack g1 app/db=100.64.0.9 (tailscaled does not answer: connection refused)")
		if _, ready := b.l.health.Ready(); ready {
			t.Error("ready without tailscaled")
		}
		b.with(func(w *world) { w.tunnelDown = true })
		b.tailnet(running(device("db.example", "100.64.0.9")))
		b.expect("ack g1 app/db=100.64.0.9 (Interface tailscale0 is not up)")
		b.with(func(w *world) { w.tunnelDown = false })
		b.post(b.l.lookAtLinks)
		b.expect("ack g1 connected app/db=100.64.0.9")
	})
}

func TestForwardingFails(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		b.with(func(w *world) { w.forwardErr = errors.New("not permitted") })
		b.post(b.l.lookAtLinks)
		b.expect("ack g1 connected app/db=ProgrammingFailed")
		b.with(func(w *world) { w.forwardErr = nil })
		time.Sleep(tickTime)
		b.expect("ack g1 connected app/db=100.64.0.9")
	})
}

func TestIPv6IsUsedOnceThePodForwardsIt(t *testing.T) {
	start(t, func(b *bench) {
		b.l.podIPs = append(b.l.podIPs, addr("fd00::5"))
		state := running(device("db.example", "fd7a:115c:a1e0::9"))
		state.Netmap.Own = append(state.Netmap.Own, addr("fd7a:115c:a1e0::1"))
		b.config(1, target("app/db", "db.example", 5432))
		b.tailnet(state)
		b.expect(published, "program ", "ack g1 connected app/db=AddressFamilyUnsupported")
		b.with(func(w *world) { w.ipv6 = true })
		time.Sleep(tickTime)
		b.expect("program 5432>[fd7a:115c:a1e0::9]:5432", "ack g1 connected app/db=fd7a:115c:a1e0::9")
	})
}

func TestSettingsAreApplied(t *testing.T) {
	start(t, func(b *bench) {
		state := running(device("db.example", "100.64.0.9"))
		state.Netmap.Peers[0].Routes = []netip.Prefix{netip.MustParsePrefix("192.168.7.0/24")}
		state.Prefs = tailnet.Prefs{Hostname: "app-db"}
		b.configOf(proxyconfig.Config{Generation: 1, Hostname: "app-db", Targets: []proxyconfig.Target{target("app/db", "db.example", 5432)}})
		b.tailnet(state)
		time.Sleep(time.Minute)
		b.expect(published, "program 5432>100.64.0.9:5432", "ack g1 connected app/db=100.64.0.9")

		b.with(func(w *world) { w.prefsErr = errors.New("not now") })
		b.configOf(proxyconfig.Config{Generation: 2, Hostname: "new-name", AcceptRoutes: true, Targets: []proxyconfig.Target{target("app/db", "db.example", 5432)}})
		time.Sleep(20 * time.Millisecond)
		b.expect("ack g2 connected app/db=100.64.0.9", "prefs true new-name")
		b.with(func(w *world) { w.prefsErr = nil })
		time.Sleep(time.Second)
		b.expect("prefs true new-name")
		time.Sleep(time.Hour)
		b.expect()

		gone := state
		gone.Answers, gone.Running, gone.Problem = false, false, "gone"
		b.tailnet(gone)
		b.tailnet(state) // A restarted tailscaled has the settings of its file.
		time.Sleep(time.Second)
		b.expect("ack g2 app/db=100.64.0.9 (gone)", "ack g2 connected app/db=100.64.0.9", "prefs true new-name")

		behind := target("app/db", "", 5432)
		behind.Destination = proxyconfig.Destination{IP: addr("192.168.7.1")}
		b.configOf(proxyconfig.Config{Generation: 3, Targets: []proxyconfig.Target{behind}})
		time.Sleep(time.Second)
		b.expect("program 5432>192.168.7.1:5432", "ack g3 connected app/db=192.168.7.1")
	})
}

func TestLoginWithAChangedKey(t *testing.T) {
	start(t, func(b *bench) {
		b.post(func() { b.l.setTailscaledConfig([]byte(`{"AuthKey":"one"}`)) })
		b.up()
		out := running(device("db.example", "100.64.0.9"))
		out.Running, out.NeedsLogin, out.Problem = false, true, "needs a key"
		b.tailnet(out)
		time.Sleep(time.Hour)
		b.expect("ack g1 app/db=100.64.0.9 (needs a key)") // tailscaled knows that key.
		b.post(func() { b.l.setTailscaledConfig([]byte(`{}`)) })
		time.Sleep(time.Hour)
		b.expect()
		b.with(func(w *world) { w.loginErr = errors.New("not now") })
		b.post(func() { b.l.setTailscaledConfig([]byte(`{"AuthKey":"two"}`)) })
		time.Sleep(100 * time.Millisecond)
		b.expect("login")
		b.with(func(w *world) { w.loginErr = nil })
		time.Sleep(time.Second)
		b.expect("login")
		time.Sleep(time.Hour)
		b.expect()
		b.tailnet(running(device("db.example", "100.64.0.9")))
		b.expect("ack g1 connected app/db=100.64.0.9")
	})
}

func TestDrainWithoutFlows(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		b.stopAt(time.Now())
		b.expect("ack g1 connected draining app/db=100.64.0.9")
		if why, ready := b.l.health.Ready(); ready || why != "The proxy is draining" {
			t.Errorf("ready %t, %s", ready, why)
		}
		b.ends(time.Second, 2*time.Second)
		b.expect()
	})
}

func (b *bench) stopAt(now time.Time) {
	b.stamp = now
	b.l.stops <- struct{}{}
	synctest.Wait()
}

func (b *bench) ends(from, to time.Duration) {
	b.t.Helper()
	select {
	case <-b.done:
	case <-time.After(time.Hour):
		b.t.Fatal("never ended")
	}
	if took := time.Since(b.stamp); took < from || took > to {
		b.t.Errorf("ended after %s, want %s to %s", took, from, to)
	}
}

func TestDrainLetsFlowsFinishAndTargetsMove(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		b.with(func(w *world) { w.open = 1 })
		b.stopAt(time.Now())
		time.Sleep(8 * time.Second)
		b.tailnet(running(device("db.example", "100.64.0.20")))
		b.expect("ack g1 connected draining app/db=100.64.0.9", "program 5432>100.64.0.20:5432", "ack g1 connected draining app/db=100.64.0.20")
		b.with(func(w *world) { w.open = 0 })
		b.ends(9*time.Second, 10*time.Second)
	})
}

func TestDrainResetsAfterTheCap(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		b.with(func(w *world) { w.open, w.flows = 1, make([]rules.Flow, 1) })
		b.stopAt(time.Now())
		b.expect("ack g1 connected draining app/db=100.64.0.9")
		b.with(func(w *world) {
			w.flows = []rules.Flow{{Protocol: rules.TCP, Port: 5432, To: netip.MustParseAddrPort("100.64.0.9:5432"), From: addr("100.64.0.1")}}
		})
		b.ends(22*time.Second, 23*time.Second)
		b.expect("program ", "delete 1 flows")
	})
}

func TestASecondStopEndsAtOnce(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		b.with(func(w *world) { w.open = 1 })
		b.stopAt(time.Now())
		time.Sleep(5 * time.Second)
		b.l.stops <- struct{}{}
		b.ends(5*time.Second, 5*time.Second)
		b.expect("ack g1 connected draining app/db=100.64.0.9", "program ")
	})
}

func TestTheLoopBeats(t *testing.T) {
	start(t, func(b *bench) {
		b.up()
		time.Sleep(time.Hour)
		if err := b.alive(); err != nil {
			t.Error(err)
		}
	})
}
func (b *bench) alive() error {
	w := httptest.NewRecorder()
	b.l.health.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	if w.Code != http.StatusOK {
		return fmt.Errorf("%d: %s", w.Code, w.Body)
	}
	return nil
}
