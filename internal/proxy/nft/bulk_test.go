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

package nft_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
	"github.com/tailnet-egress/egress-operator/test/netlab"
)

// seen is a packet on the wire.
type seen struct {
	source, destination netip.Addr
	protocol            uint8
	syn                 bool
	mss                 uint16 // of a SYN that has one
}

// capture listens to every packet at the eth0 of host; the result returns what
// was heard so far.
func capture(t testing.TB, host *netlab.Host) func() []seen {
	t.Helper()
	var fd int
	check(t, host.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		if err != nil {
			return err
		}
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: link.Index})
	}))
	check(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	var mu sync.Mutex
	var heard []seen
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 1<<16)
		for {
			select {
			case <-done:
				return
			default:
			}
			n, _, err := unix.Recvfrom(fd, buffer, 0)
			if err != nil {
				continue
			}
			if packet, ok := decode(buffer[:n]); ok {
				mu.Lock()
				heard = append(heard, packet)
				mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-ended
		_ = unix.Close(fd)
	})
	return func() []seen {
		mu.Lock()
		defer mu.Unlock()
		return append([]seen(nil), heard...)
	}
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func decode(data []byte) (seen, bool) {
	var p seen
	var transport []byte
	switch {
	case len(data) >= 20 && data[0]>>4 == 4:
		p.protocol = data[9]
		p.source, p.destination = netip.AddrFrom4([4]byte(data[12:16])), netip.AddrFrom4([4]byte(data[16:20]))
		transport = data[min(len(data), int(data[0]&15)*4):]
	case len(data) >= 40 && data[0]>>4 == 6:
		p.protocol = data[6]
		p.source, p.destination = netip.AddrFrom16([16]byte(data[8:24])), netip.AddrFrom16([16]byte(data[24:40]))
		transport = data[40:]
	default:
		return p, false
	}
	if p.protocol != unix.IPPROTO_TCP || len(transport) < 20 || transport[13]&2 == 0 {
		return p, true
	}
	p.syn = true
	for options := transport[20:min(len(transport), int(transport[12]>>4)*4)]; len(options) >= 4; {
		switch options[0] {
		case 0:
			return p, true
		case 1:
			options = options[1:]
			continue
		case 2:
			p.mss = binary.BigEndian.Uint16(options[2:])
		}
		options = options[min(len(options), max(2, int(options[1]))):]
	}
	return p, true
}

// Neither end can learn of the tunnel's smaller packets but from the offered
// segment size.
func TestBulkWithoutICMP(t *testing.T) {
	const size = 50 << 20
	p := newPath(t)
	db := database()
	db.Listeners = append(db.Listeners, listener(proxyconfig.TCP, 6000, 6000))
	apply(t, p.rules, input(db), true)
	for _, host := range []*netlab.Host{p.client, p.target} {
		dropDestinationUnreachable(t, host)
	}
	for _, test := range []struct {
		pod, target string
		mss         uint16
	}{
		{podIP + ":6000", "100.64.0.9:6000", tunnel - 40},
		{"[" + pod6 + "]:6000", "[" + target6.String() + "]:6000", tunnel - 60},
	} {
		t.Run(test.pod, func(t *testing.T) {
			atClient, atTarget := capture(t, p.client), capture(t, p.target)
			listener := must(p.target.Listen("tcp", test.target))(t)
			defer func() { _ = listener.Close() }()
			served := make(chan error, 1)
			go func() { served <- serveBulk(listener, size) }()
			conn := must(dial(t, p.client, "tcp", test.pod, time.Second))(t)
			defer func() { _ = conn.Close() }()
			check(t, conn.SetDeadline(time.Now().Add(60*time.Second)))
			start := time.Now()
			if _, err := io.CopyN(conn, zeros{}, size); err != nil {
				t.Fatalf("up: %v", err)
			}
			up := time.Since(start)
			if err := drainTo(conn, size); err != nil {
				t.Fatalf("down: %v", err)
			}
			check(t, <-served)
			t.Logf("%d MiB up in %v, down in %v", size>>20, up, time.Since(start)-up)
			for where, heard := range map[string][]seen{"SYN at the target": atTarget(), "SYN-ACK at the client": atClient()} {
				clamped := 0
				for _, packet := range heard {
					if packet.syn && packet.mss == test.mss {
						clamped++
					}
				}
				if clamped == 0 {
					t.Errorf("no %s offers segments of %d bytes", where, test.mss)
				}
			}
		})
	}
}

// Without the clamp a transfer hangs: the test above can fail.
func TestBulkHangsUnclamped(t *testing.T) {
	const size = 1 << 20
	p := newPath(t)
	apply(t, p.rules, input(database()), true)
	nftCommand(t, p.proxy, "", "flush chain ip egress forward")
	dropDestinationUnreachable(t, p.client)
	listener := must(p.target.Listen("tcp", "100.64.0.9:15432"))(t)
	defer func() { _ = listener.Close() }()
	go func() { _ = serveBulk(listener, size) }()
	conn := must(dial(t, p.client, "tcp", podIP+":5432", time.Second))(t)
	defer func() { _ = conn.Close() }()
	check(t, conn.SetDeadline(time.Now().Add(2*time.Second)))
	_, err := io.CopyN(conn, zeros{}, size)
	if err == nil {
		err = drainTo(conn, size)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the transfer ended with %v, want a time-out", err)
	}
}

func dropDestinationUnreachable(t *testing.T, host *netlab.Host) {
	t.Helper()
	for family, match := range map[string]string{"ip": "icmp type destination-unreachable", "ip6": "icmpv6 type packet-too-big"} {
		nftCommand(t, host, "", fmt.Sprintf("add table %[1]s noicmp; add chain %[1]s noicmp input { type filter hook input priority 0; }; "+
			"add rule %[1]s noicmp input %[2]s drop", family, match))
	}
}

// serveBulk reads size bytes from the first connection and writes as many.
func serveBulk(listener net.Listener, size int64) error {
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	err = drainTo(conn, size)
	if err == nil {
		_, err = io.CopyN(conn, zeros{}, size)
	}
	return errors.Join(err, conn.Close())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
