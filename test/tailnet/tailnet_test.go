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
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
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

// reach fails the test unless the host of that name answers within 12 seconds:
// WireGuard repeats a lost handshake after 5.
func reach(t *testing.T, ctx context.Context, from *Device, network string, to netip.Addr, name string) {
	t.Helper()
	var answer string
	var err error
	for range 12 {
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

// httpGet returns the body that a device gets from a URL.
func httpGet(t *testing.T, ctx context.Context, from *Device, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DialContext: from.Host().Dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close() //nolint:errcheck // Only the content matters.
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return string(body)
}

func TestHandler(t *testing.T) {
	_, tn := start(t, "tnhttp")
	server := httptest.NewServer(tn.Handler())
	defer server.Close()
	steps := []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/devices", "", 200, `[]`},
		{"POST", "/devices", `{"name": "db", "tcpPorts": [5432]}`, 201, `"fqdn": "db.tail1234.ts.net"`},
		{"POST", "/devices", `{"name": "db"}`, 409, `there is such a device already: db`},
		{"POST", "/devices", `{"name": "Not a label"}`, 400, `DNS label`},
		{"POST", "/devices", `{"naam": "db"}`, 400, `unknown field`},
		{"POST", "/devices/db/subnet-hosts", `{"name": "nas", "address": "192.168.7.10/24"}`, 200, `"192.168.7.10/24"`},
		{"POST", "/devices/db/routes", `{"prefixes": ["192.168.7.0/24"]}`, 200, `"192.168.7.0/24"`},
		{"POST", "/devices/db/ports", `{"tcpPorts": [5433], "udpPorts": [53]}`, 200, `"name": "db"`},
		{"POST", "/devices/db/ports", `{"tcpPorts": [5432]}`, 500, `tcp/5432 is served already`},
		{"POST", "/devices/db/recreate", "", 200, `"100.64.1.3"`},
		{"POST", "/devices/db/readdress", "", 200, `"100.64.1.4"`},
		{"POST", "/devices/db/expire", "", 200, `"expired": true`},
		{"POST", "/devices/db/renew", "", 200, `"name": "db"`},
		{"POST", "/devices/db/rename", `{"name": "database"}`, 200, `"fqdn": "database.tail1234.ts.net"`},
		{"DELETE", "/devices/db", "", 404, `no such device: db`},
		{"DELETE", "/devices/database", "", 200, `"name": "database"`},
		{"GET", "/devices", "", 200, `[]`},
	}
	for _, step := range steps {
		req, err := http.NewRequestWithContext(t.Context(), step.method, server.URL+step.path, strings.NewReader(step.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != step.status || !strings.Contains(string(got), step.want) {
			t.Errorf("%s %s %s: %d %s, %v", step.method, step.path, step.body, resp.StatusCode, got, err)
		}
	}
}

func TestStartAfterACrash(t *testing.T) {
	ctx, crashed := start(t, "tncrash")
	left := add(t, ctx, crashed, "a", DeviceOptions{})
	lab, err := netlab.New("tncrash")
	if err != nil {
		t.Fatal(err)
	}
	opts := crashed.opts
	opts.Lab = lab
	tn, err := Start(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer tn.Close() //nolint:errcheck // The crashed one's Close reports what is left.
	if left.inst().proc.running() {
		t.Error("a device of the crashed tailnet still runs")
	}
	a, b := add(t, ctx, tn, "a", DeviceOptions{}), add(t, ctx, tn, "b", DeviceOptions{})
	reach(t, ctx, a, tcp, b.IPs()[0], "b")
}

func TestRemoveEndsWhatACrashLeft(t *testing.T) {
	netlab.Require(t)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, pidDir), 0o755); err != nil {
		t.Fatal(err)
	}
	left, err := startProcess(exec.Command("sleep", "60"), filepath.Join(dir, pidDir, "left"), filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := startProcess(exec.Command("sleep", "60"), filepath.Join(dir, pidDir, "other"), filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.stop(syscall.SIGKILL)
	// The same id, but a process that started at another time.
	if err := os.WriteFile(other.record, fmt.Appendf(nil, "%d 1\n", other.cmd.Process.Pid), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	if left.running() {
		t.Error("the recorded process still runs")
	}
	if !other.running() {
		t.Error("a process that was not ours was ended")
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the state directory: %v", err)
	}
}
