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

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"time"

	"tailscale.com/types/logger"
	"tailscale.com/util/linuxfw"

	"github.com/tailnet-egress/egress-operator/internal/proxy/nft"
	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
	"github.com/tailnet-egress/egress-operator/test/netlab"
)

// Addresses of the path: the client on the Pods' side, the target behind a veth
// that is named like the tunnel.
var (
	clientIP = netip.MustParseAddr("192.0.2.2")
	proxyIP  = netip.MustParseAddr("192.0.2.1")
	ownIP    = netip.MustParseAddr("100.64.0.1")
	targetIP = netip.MustParseAddr("100.64.0.2")
)

const (
	lab = "egrbench"
	// firstPort is where mappings begin; all lead to the same target.
	firstPort  = 10000
	echoPort   = 7
	sinkPort   = 9
	tunnel     = "tailscale0"
	smallMSS   = 600
	streamTime = time.Second
)

// path is client, proxy and target in a row.
type path struct {
	client, proxy, target *netlab.Host
	programmer            *nft.Programmer
	closers               []io.Closer
}

func newPath() (p *path, err error) {
	if err := netlab.Remove(lab); err != nil {
		return nil, err
	}
	p = &path{}
	for name, host := range map[string]**netlab.Host{"client": &p.client, "proxy": &p.proxy, "target": &p.target} {
		if *host, err = netlab.NewHost(lab + "-" + name); err != nil {
			return nil, errors.Join(err, netlab.Remove(lab))
		}
	}
	if err := p.build(); err != nil {
		return nil, errors.Join(err, netlab.Remove(lab))
	}
	return p, nil
}

func (p *path) close() {
	for _, c := range p.closers {
		_ = c.Close()
	}
	_ = netlab.Remove(lab)
}

func (p *path) build() error {
	for _, step := range [][]string{
		{"ip", "link", "add", "eth0", "netns", p.client.Namespace, "type", "veth", "peer", "name", "eth0", "netns", p.proxy.Namespace},
		{"ip", "link", "add", "eth0", "netns", p.target.Namespace, "mtu", "1280", "type", "veth", "peer", "name", tunnel, "netns", p.proxy.Namespace, "mtu", "1280"},
		{"ip", "-n", p.client.Namespace, "addr", "add", clientIP.String() + "/24", "dev", "eth0"},
		{"ip", "-n", p.proxy.Namespace, "addr", "add", proxyIP.String() + "/24", "dev", "eth0"},
		{"ip", "-n", p.proxy.Namespace, "addr", "add", ownIP.String() + "/24", "dev", tunnel},
		{"ip", "-n", p.target.Namespace, "addr", "add", targetIP.String() + "/24", "dev", "eth0"},
		{"ip", "-n", p.client.Namespace, "link", "set", "eth0", "up"}, {"ip", "-n", p.proxy.Namespace, "link", "set", "eth0", "up"},
		{"ip", "-n", p.proxy.Namespace, "link", "set", tunnel, "up"}, {"ip", "-n", p.target.Namespace, "link", "set", "eth0", "up"},
		{"ip", "netns", "exec", p.proxy.Namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1"},
		{"ip", "netns", "exec", p.client.Namespace, "sysctl", "-qw", "net.ipv4.tcp_tw_reuse=1"},
	} {
		if out, err := exec.Command(step[0], step[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", step, err, out)
		}
	}
	for port, serve := range map[int]func(net.Conn){echoPort: func(c net.Conn) { _, _ = io.Copy(c, c) }, sinkPort: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }} {
		listener, err := p.target.Listen("tcp", netip.AddrPortFrom(targetIP, uint16(port)).String())
		if err != nil {
			return err
		}
		p.closers = append(p.closers, listener)
		go accept(listener, serve)
	}
	return nil
}

func (p *path) reopen() error {
	if p.programmer != nil {
		if err := p.programmer.Close(); err != nil {
			return err
		}
	}
	return p.proxy.Do(func() (err error) {
		p.programmer, err = nft.Open()
		return err
	})
}

func accept(listener net.Listener, serve func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close() //nolint:errcheck // The client sees it.
			serve(conn)
		}()
	}
}

// ruleset is ours for n mappings, the first to the echo, the second to the sink.
func ruleset(n int, moved bool) rules.Ruleset {
	in := rules.Input{Own4: ownIP, HealthPort: 9002, TailscaledPort: 41641, Families: rules.Families{IPv4: true}}
	for i := range n {
		to := targetIP
		if moved && i == n/2 {
			to = to.Next()
		}
		in.Targets = append(in.Targets, rules.Target{
			ID: fmt.Sprintf("bench/%d", i), Addr4: to,
			Listeners: []proxyconfig.Listener{{Protocol: proxyconfig.TCP, Port: uint16(firstPort + i), TargetPort: portOf(i)}},
		})
	}
	return rules.Compile(in)
}

func portOf(i int) uint16 {
	if i == 1 {
		return sinkPort
	}
	return echoPort
}

// programOurs makes n mappings from nothing.
func (p *path) programOurs(n int) (time.Duration, error) {
	want := ruleset(n, false)
	started := time.Now()
	_, err := p.programmer.Apply(want)
	return time.Since(started), err
}

// programToday makes n mappings from nothing, a target each, as Tailscale's
// proxy does it.
func (p *path) programToday(n int) (took time.Duration, err error) {
	err = p.proxy.Do(func() error {
		runner, err := linuxfw.New(logger.Discard, "nftables")
		if err != nil {
			return err
		}
		started := time.Now()
		for i := range n {
			// Every target has an address of its own, as devices have.
			to := targetIP
			if i > 1 {
				to = netip.AddrFrom4([4]byte{100, 65, byte(i >> 8), byte(i)})
			}
			pm := linuxfw.PortMap{MatchPort: uint16(firstPort + i), TargetPort: portOf(i), Protocol: "tcp"}
			if err := errors.Join(
				runner.EnsureSNATForDst(ownIP, to), runner.ClampMSSToPMTU(tunnel, to),
				runner.EnsurePortMapRuleForSvc(fmt.Sprintf("bench%d", i), tunnel, to, pm),
			); err != nil {
				return fmt.Errorf("target %d: %w", i, err)
			}
		}
		took = time.Since(started)
		return nil
	})
	return took, err
}

// clear removes every rule from the proxy.
func (p *path) clear() error {
	out, err := exec.Command("nsenter", "--net=/run/netns/"+p.proxy.Namespace, "nft", "flush", "ruleset").CombinedOutput()
	if err != nil {
		return fmt.Errorf("nft flush ruleset: %w: %s", err, out)
	}
	return nil
}

// connects are the durations of n connections through the proxy, in milliseconds.
func (p *path) connects(n int) ([]float64, error) {
	var out []float64
	err := p.client.Do(func() error {
		for range n {
			started := time.Now()
			conn, err := net.DialTimeout("tcp4", netip.AddrPortFrom(proxyIP, firstPort).String(), 5*time.Second)
			if err != nil {
				return err
			}
			out = append(out, millis(time.Since(started)))
			// A reset leaves no port waiting.
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
		return nil
	})
	return out, err
}

// stream sends small segments for a second and returns Gbit/s.
func (p *path) stream() (float64, error) {
	var rate float64
	err := p.client.Do(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		conn, err := dialSmall(ctx, netip.AddrPortFrom(proxyIP, firstPort+1).String())
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // It was only written to.
		buf, sent, started := make([]byte, 1<<18), 0, time.Now()
		for time.Since(started) < streamTime {
			n, err := conn.Write(buf)
			if err != nil {
				return err
			}
			sent += n
		}
		rate = float64(sent) * 8 / 1e9 / time.Since(started).Seconds()
		return nil
	})
	return rate, err
}

// settle lets the kernel finish what a commit left for later.
func settle() {
	runtime.GC()
	time.Sleep(100 * time.Millisecond)
}
