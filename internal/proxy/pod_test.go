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
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailnet-egress/egress-operator/internal/proxy/object"
	"github.com/tailnet-egress/egress-operator/internal/proxy/object/objecttest"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
	"github.com/tailnet-egress/egress-operator/test/netlab"
	"github.com/tailnet-egress/egress-operator/test/tailnet"
)

const (
	optionsVariable = "EGRESS_PROXY_TEST_OPTIONS"
	apiAddress      = "127.0.0.1:8001"
	ackKey          = "configmaps/pod-ack"
	secretKey       = "secrets/pod"
	clientAddr      = "172.29.0.10/24"
	podNetwork      = "172.29.0.0/24"
)

// TestMain runs the proxy instead where the test below says so: in a process of
// its own, inside a Pod's namespace.
func TestMain(m *testing.M) {
	raw := os.Getenv(optionsVariable)
	if raw == "" {
		os.Exit(m.Run())
	}
	var o Options
	if err := json.Unmarshal([]byte(raw), &o); err != nil {
		panic(err)
	}
	o.API = &rest.Config{Host: "http://" + apiAddress, QPS: -1}
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	signals, stops := make(chan os.Signal, 2), make(chan struct{}, 2)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		for range signals {
			stops <- struct{}{}
		}
	}()
	if err := Run(context.Background(), o, stops); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// pod is a proxy Pod on a real tailnet: a device with a tailscaled, the proxy
// beside it, an API server, and a client on the Pod's network.
type pod struct {
	t      *testing.T
	ctx    context.Context
	tn     *tailnet.Tailnet
	device *tailnet.Device
	client *netlab.Host
	api    *objecttest.Server
	ip     netip.Addr
	dir    string
	cmd    *exec.Cmd
	log    *os.File
	ended  chan error

	config proxyconfig.Config
}

func newPod(t *testing.T, name string) *pod {
	netlab.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	lab, err := netlab.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lab.Close() })
	state, err := os.MkdirTemp("/tmp", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	tn, err := tailnet.Start(ctx, tailnet.Options{Lab: lab, StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tn.Close() })
	p := &pod{t: t, ctx: ctx, tn: tn, dir: filepath.Join(state, "volume"), api: objecttest.New()}
	p.device, err = tn.AddDevice(ctx, "pod", tailnet.DeviceOptions{})
	must(t, err)
	p.ip = p.device.Host().Addr
	p.client, err = lab.Host("client", netip.MustParsePrefix(clientAddr))
	must(t, err)
	// What a Pod has without being privileged.
	must(t, p.device.Host().Sysctl("net/ipv4/ip_forward", "0"))
	p.serveAPI()
	must(t, os.Mkdir(p.dir, 0o755))
	p.api.Put(ackKey, nil)
	p.api.Put(secretKey, map[string]string{"_machinekey": "m"})
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (p *pod) add(name string) *tailnet.Device {
	p.t.Helper()
	d, err := p.tn.AddDevice(p.ctx, name, tailnet.DeviceOptions{TCPPorts: []uint16{5432}, UDPPorts: []uint16{5432}})
	must(p.t, err)
	return d
}

func (p *pod) serveAPI() {
	listener, err := p.device.Host().Listen("tcp", apiAddress)
	must(p.t, err)
	server := &http.Server{Handler: p.api, ReadHeaderTimeout: time.Second}
	go server.Serve(listener) //nolint:errcheck // It ends with the test.
	p.t.Cleanup(func() { _ = server.Close() })
}

// start runs the proxy until the test ends, with what it logs in the test's log
// if that fails.
func (p *pod) start() {
	p.t.Helper()
	options, err := json.Marshal(Options{
		ConfigFile: filepath.Join(p.dir, proxyconfig.ConfigKey), ConfigObject: object.Ref{Kind: object.Secret, Name: "pod"},
		AckName: "pod-ack", SecretName: "pod", Socket: p.device.Socket(), HealthAddress: ":9002", TailscaledPort: 41641,
		DrainCap: 4 * time.Second, PodUID: "uid", PodIPs: []netip.Addr{p.ip}, Namespace: "tailscale",
	})
	must(p.t, err)
	executable, err := os.Executable()
	must(p.t, err)
	p.log, err = os.Create(filepath.Join(p.t.TempDir(), "proxy.log"))
	must(p.t, err)
	p.cmd = p.device.Host().Command(context.WithoutCancel(p.ctx), executable)
	p.cmd.Env = append(os.Environ(), optionsVariable+"="+string(options))
	p.cmd.Stderr = p.log
	must(p.t, p.cmd.Start())
	p.ended = make(chan error, 1)
	go func() { p.ended <- p.cmd.Wait() }()
	p.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		if p.t.Failed() {
			content, _ := os.ReadFile(p.log.Name())
			p.t.Logf("the proxy's log:\n%s", content)
		}
	})
}

// target changes the config by the API.
func (p *pod) target(t proxyconfig.Target) {
	p.t.Helper()
	t.ID = "app/db"
	p.config.Generation++
	p.config.Targets = []proxyconfig.Target{t}
	data, err := p.config.Encode()
	must(p.t, err)
	p.api.Set(secretKey, proxyconfig.ConfigKey, string(data))
}

func toName(fqdn string) proxyconfig.Target {
	return proxyconfig.Target{Destination: proxyconfig.Destination{FQDN: fqdn}, AllPorts: true}
}

func (p *pod) ack() proxyconfig.Ack {
	ack, err := proxyconfig.DecodeAck([]byte(p.api.Get(ackKey)[proxyconfig.AckKey]))
	if err != nil {
		return proxyconfig.Ack{}
	}
	return ack
}

// acked waits until the acknowledgement shows that, and returns how long it took.
func (p *pod) acked(want string, within time.Duration) time.Duration {
	p.t.Helper()
	begun := time.Now()
	for {
		got := summary(p.ack())
		if strings.HasPrefix(got, want) {
			return time.Since(begun)
		}
		if time.Since(begun) > within {
			p.t.Fatalf("after %s the acknowledgement is %q, want %q", within, got, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// ask sends a line from the client through the Pod and returns the answer.
func (p *pod) ask(network string, port uint16) (string, error) {
	ctx, cancel := context.WithTimeout(p.ctx, 400*time.Millisecond)
	defer cancel()
	conn, err := p.client.Dial(ctx, network, netip.AddrPortFrom(p.ip, port).String())
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // It was read to the end.
	_ = conn.SetDeadline(time.Now().Add(400 * time.Millisecond))
	return exchange(conn, "hello")
}

func exchange(conn net.Conn, line string) (string, error) {
	if _, err := io.WriteString(conn, line+"\n"); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(answer), err
}

// works waits until the client is answered by that name, by TCP and UDP.
func (p *pod) works(name string, within time.Duration) {
	p.t.Helper()
	begun := time.Now()
	for _, network := range []string{"tcp", "udp"} {
		for {
			answer, err := p.ask(network, 5432)
			if err == nil && answer == name+" hello" {
				break
			}
			if time.Since(begun) > within {
				p.t.Fatalf("%s: after %s: %q, %v", network, within, answer, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	p.t.Logf("%s answered after %s", name, time.Since(begun).Round(time.Millisecond))
}

// refused is whether the client is refused at once.
func (p *pod) refused() {
	p.t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		begun := time.Now()
		if answer, err := p.ask(network, 5432); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(begun) > 200*time.Millisecond {
			p.t.Errorf("%s was not refused at once: %q, %v after %s", network, answer, err, time.Since(begun))
		}
	}
}

// stream is a client that goes on and on, and the times when it was answered.
type stream struct {
	mu       sync.Mutex
	answered []time.Time
	stop     context.CancelFunc
	done     chan struct{}
}

func (s *stream) note() {
	s.mu.Lock()
	s.answered = append(s.answered, time.Now())
	s.mu.Unlock()
}

// gap stops the stream and returns the longest time without an answer since from.
func (s *stream) gap(from time.Time) time.Duration {
	s.stop()
	<-s.done
	longest, last := time.Duration(0), from
	for _, at := range append(slices.Clone(s.answered), time.Now()) {
		if at.Before(from) {
			continue
		}
		longest, last = max(longest, at.Sub(last)), at
	}
	return longest
}

func (p *pod) stream(run func(ctx context.Context, s *stream)) *stream {
	ctx, cancel := context.WithCancel(p.ctx)
	s := &stream{stop: cancel, done: make(chan struct{})}
	go func() { defer close(s.done); run(ctx, s) }()
	p.t.Cleanup(cancel)
	return s
}

// connections are new ones, one after the other.
func (p *pod) connections() *stream {
	return p.stream(func(ctx context.Context, s *stream) {
		for ctx.Err() == nil {
			if _, err := p.ask("tcp", 5432); err == nil {
				s.note()
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

// datagrams are those of one flow, from one port, whatever comes back.
func (p *pod) datagrams() *stream {
	p.t.Helper()
	conn, err := p.client.Dial(p.ctx, "udp", netip.AddrPortFrom(p.ip, 5432).String())
	must(p.t, err)
	return p.stream(func(ctx context.Context, s *stream) {
		go func() {
			buf := make([]byte, 1500)
			for ctx.Err() == nil {
				if n, err := conn.Read(buf); err == nil && n > 0 {
					s.note()
				} else {
					time.Sleep(10 * time.Millisecond)
				}
			}
		}()
		for ctx.Err() == nil {
			_, _ = io.WriteString(conn, "hello\n")
			time.Sleep(20 * time.Millisecond)
		}
		_ = conn.Close()
	})
}
