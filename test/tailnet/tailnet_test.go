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
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"tailscale.com/ipn/ipnstate"

	"github.com/tailnet-egress/egress-operator/test/netlab"
)

// start makes a tailnet in a lab of that name, which the test's end removes.
func start(t *testing.T, lab string) (context.Context, *Tailnet) {
	t.Helper()
	netlab.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	network, err := netlab.New(lab)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", lab)
	if err != nil {
		t.Fatal(err)
	}
	tn, err := Start(ctx, Options{Lab: network, StateDir: dir, Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tn.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("The devices' logs are in %s", dir)
		} else {
			_ = os.RemoveAll(dir)
		}
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, tn
}

func add(t *testing.T, ctx context.Context, tn *Tailnet, name string, opts DeviceOptions) *Device {
	t.Helper()
	d, err := tn.AddDevice(ctx, name, opts)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// ask sends a line from a device and returns the answer.
func ask(ctx context.Context, from *Device, network string, to netip.Addr, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := from.Host().Dial(ctx, network, net.JoinHostPort(to.String(), fmt.Sprint(EchoPort)))
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // Only the answer matters.
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(answer), err
}

// reach fails the test unless the host of that name answers within 5 seconds.
func reach(t *testing.T, ctx context.Context, from *Device, network string, to netip.Addr, name string) {
	t.Helper()
	var answer string
	var err error
	for range 5 {
		if answer, err = ask(ctx, from, network, to, time.Second); err == nil {
			break
		}
	}
	if err != nil || answer != name+" hello" {
		t.Errorf("%s at %s: answer %q, %v", network, to, answer, err)
	}
}

// sees waits until a device's netmap fulfils the condition and returns how long
// that took.
func sees(t *testing.T, ctx context.Context, d *Device, since time.Time, limit time.Duration, what string, condition func(*ipnstate.Status) bool) {
	t.Helper()
	for time.Since(since) < limit+2*time.Second {
		status, err := d.Local().Status(ctx)
		if err == nil && condition(status) {
			took := time.Since(since)
			t.Logf("%s was seen after %s", what, took.Round(time.Millisecond))
			if took > limit {
				t.Errorf("%s took %s to be seen, longer than %s", what, took, limit)
			}
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%s was not seen", what)
}

func peer(status *ipnstate.Status, fqdn string) *ipnstate.PeerStatus {
	for _, p := range status.Peer {
		if p.DNSName == fqdn+"." {
			return p
		}
	}
	return nil
}

func TestDevicesReachEachOther(t *testing.T) {
	ctx, tn := start(t, "tnreach")
	a := add(t, ctx, tn, "a", DeviceOptions{})
	b := add(t, ctx, tn, "b", DeviceOptions{})
	for _, ip := range b.IPs() {
		for _, network := range []string{"tcp", "udp"} {
			reach(t, ctx, a, network, ip, "b")
		}
	}
}
