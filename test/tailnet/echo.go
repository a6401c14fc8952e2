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
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/tailnet-egress/egress-operator/test/netlab"
)

// The ports that every host serves.
const (
	EchoPort = 7  // TCP and UDP
	HTTPPort = 80 // GET /bytes/N, and uploads with POST or PUT
)

const (
	tcp = "tcp"
	udp = "udp"

	maxLine = 64 << 10
)

// echo answers on every address of a host. A line or a datagram is answered with
// the host's name, a space, what came and a newline.
type echo struct {
	name func() string
	host *netlab.Host

	mu      sync.Mutex
	closers map[string]func()
}

func newEcho(host *netlab.Host, name func() string) (*echo, error) {
	e := &echo{name: name, host: host, closers: map[string]func(){}}
	err := errors.Join(e.listen(tcp, EchoPort), e.listen(udp, EchoPort), e.serveHTTP())
	if err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// listen opens an echo server; network is tcp or udp.
func (e *echo) listen(network string, port uint16) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := fmt.Sprintf("%s/%d", network, port)
	if e.closers[id] != nil {
		return fmt.Errorf("%s is served already", id)
	}
	var closer func()
	var err error
	switch network {
	case tcp:
		closer, err = e.listenTCP(port)
	case udp:
		closer, err = e.listenUDP(port)
	default:
		return fmt.Errorf("cannot serve %s: the network is tcp or udp", id)
	}
	if err != nil {
		return fmt.Errorf("serving %s in %s: %w", id, e.host.Namespace, err)
	}
	e.closers[id] = closer
	return nil
}

// unlisten closes an echo server and its connections.
func (e *echo) unlisten(network string, port uint16) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := fmt.Sprintf("%s/%d", network, port)
	if closer := e.closers[id]; closer != nil {
		closer()
		delete(e.closers, id)
	}
}

func (e *echo) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, closer := range e.closers {
		closer()
	}
	e.closers = map[string]func(){}
}

func (e *echo) listenTCP(port uint16) (func(), error) {
	listener, err := e.host.Listen(tcp, fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	open := map[net.Conn]bool{} // nil once closed
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			closed := open == nil
			if !closed {
				open[conn] = true
			}
			mu.Unlock()
			if closed {
				_ = conn.Close()
				return
			}
			go func() {
				e.answerLines(conn)
				mu.Lock()
				defer mu.Unlock()
				delete(open, conn)
			}()
		}
	}()
	return func() {
		_ = listener.Close()
		mu.Lock()
		defer mu.Unlock()
		for conn := range open {
			_ = conn.Close()
		}
		open = nil
	}, nil
}

func (e *echo) answerLines(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // The client sees the end either way.
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		if _, err := fmt.Fprintf(conn, "%s %s\n", e.name(), lines.Text()); err != nil {
			return
		}
	}
}

// listenUDP answers from the address that a datagram was sent to, which a socket
// on every address does not do by itself.
func (e *echo) listenUDP(port uint16) (func(), error) {
	conn4, err := e.host.ListenPacket("udp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	conn6, err := e.host.ListenPacket("udp6", fmt.Sprintf(":%d", port))
	if err != nil {
		_ = conn4.Close()
		return nil, err
	}
	closer := func() { _, _ = conn4.Close(), conn6.Close() }
	p4, p6 := ipv4.NewPacketConn(conn4), ipv6.NewPacketConn(conn6)
	if err := errors.Join(p4.SetControlMessage(ipv4.FlagDst, true), p6.SetControlMessage(ipv6.FlagDst, true)); err != nil {
		closer()
		return nil, err
	}
	go e.answerPackets(func(buf []byte) (int, func([]byte), error) {
		n, cm, from, err := p4.ReadFrom(buf)
		if err != nil || cm == nil {
			return 0, nil, err
		}
		return n, func(b []byte) { _, _ = p4.WriteTo(b, &ipv4.ControlMessage{Src: cm.Dst}, from) }, nil
	})
	go e.answerPackets(func(buf []byte) (int, func([]byte), error) {
		n, cm, from, err := p6.ReadFrom(buf)
		if err != nil || cm == nil {
			return 0, nil, err
		}
		return n, func(b []byte) { _, _ = p6.WriteTo(b, &ipv6.ControlMessage{Src: cm.Dst}, from) }, nil
	})
	return closer, nil
}

func (e *echo) answerPackets(read func([]byte) (int, func([]byte), error)) {
	buf := make([]byte, maxLine)
	for {
		n, reply, err := read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Others, such as "connection refused" by an ICMP message, concern one
		// datagram.
		if err == nil && reply != nil {
			reply(fmt.Appendf(nil, "%s %s\n", e.name(), strings.TrimSuffix(string(buf[:n]), "\n")))
		}
	}
}

func (e *echo) serveHTTP() error {
	listener, err := e.host.Listen(tcp, fmt.Sprintf(":%d", HTTPPort))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, e.name())
	})
	mux.HandleFunc("GET /bytes/{n}", serveBytes)
	upload := func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprintf(w, "%s %d\n", e.name(), n)
	}
	mux.HandleFunc("POST /", upload)
	mux.HandleFunc("PUT /", upload)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
	}
	e.closers["http"] = func() { _ = server.Close() }
	go func() { _ = server.Serve(listener) }()
	return nil
}

// serveBytes sends as many zero bytes as the path says.
func serveBytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
	if err != nil || n < 0 {
		http.Error(w, "the path is /bytes/ and a number", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	_, _ = io.CopyN(w, zeros{}, n)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
