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

// Package control is a coordination server for tests: it speaks the protocol of
// real tailscaled processes and lets a test do to a tailnet what its admin can
// do (mint keys, delete, expire, rename and readdress nodes, approve routes) and
// what happens to one (lost connections, a control server that is away).
// Everything is in memory.
package control

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"tailscale.com/control/controlhttp/controlhttpserver"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// maxMessage bounds a request's body, in bytes.
const maxMessage = 4 << 20

// Options configure a Server.
type Options struct {
	// Domain is the tailnet's MagicDNS domain, such as "tail1234.ts.net".
	Domain string
	// URL is where nodes reach the server, without a trailing slash.
	URL string
	// DERPMap is given to every node.
	DERPMap *tailcfg.DERPMap
	// Logf is told what happens; nil for nobody.
	Logf func(format string, args ...any)
}

// Server is a tailnet's coordination server, an http.Handler.
type Server struct {
	opts      Options
	noiseKey  key.MachinePrivate
	legacyKey key.ControlPrivate //nolint:staticcheck // Clients still ask for a key of this kind.
	mux       *http.ServeMux

	mu       sync.Mutex
	away     bool
	changes  chan struct{} // closed and replaced at every change
	nodes    map[tailcfg.NodeID]*node
	deleted  map[key.NodePublic]*tailcfg.Node // what a deleted node's client is still told
	authKeys map[string]*AuthKey
	records  []tailcfg.DNSRecord
	conns    map[net.Conn]key.MachinePublic
	lastID   tailcfg.NodeID
	lastAddr int
}

type machineKey struct{}

// New makes a server of an empty tailnet without auth keys.
func New(opts Options) *Server {
	if opts.Logf == nil {
		opts.Logf = func(string, ...any) {}
	}
	s := &Server{
		opts:      opts,
		noiseKey:  key.NewMachine(),
		legacyKey: key.NewControl(),
		mux:       http.NewServeMux(),
		changes:   make(chan struct{}),
		nodes:     map[tailcfg.NodeID]*node{},
		deleted:   map[key.NodePublic]*tailcfg.Node{},
		authKeys:  map[string]*AuthKey{},
		conns:     map[net.Conn]key.MachinePublic{},
	}
	s.mux.HandleFunc("/key", s.serveKey)
	s.mux.HandleFunc("/ts2021", s.serveNoise)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	if away {
		http.Error(w, "control server is away", http.StatusServiceUnavailable)
		return
	}
	s.mux.ServeHTTP(w, r)
}

func (s *Server) serveKey(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, &tailcfg.OverTLSPublicKeyResponse{
		LegacyPublicKey: s.legacyKey.Public(),
		PublicKey:       s.noiseKey.Public(),
	})
}

// serveNoise upgrades to the encrypted connection that all else runs over, as
// HTTP/2.
func (s *Server) serveNoise(w http.ResponseWriter, r *http.Request) {
	conn, err := controlhttpserver.AcceptHTTP(r.Context(), w, r, s.noiseKey, nil)
	if err != nil {
		s.opts.Logf("control: refused a connection of %s: %v", r.RemoteAddr, err)
		return
	}
	defer conn.Close() //nolint:errcheck // The node reconnects.
	s.mu.Lock()
	s.conns[conn] = conn.Peer()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	inner := http.NewServeMux()
	inner.HandleFunc("POST /machine/register", s.serveRegister)
	inner.HandleFunc("POST /machine/map", s.serveMap)
	inner.HandleFunc("POST /machine/update-health", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})
	// The upgrade's request ends with this function, as the connection does.
	ctx := context.WithValue(r.Context(), machineKey{}, conn.Peer())
	(&http2.Server{}).ServeConn( //nolint:staticcheck // The connection is already there; a Server has no such call.
		conn, &http2.ServeConnOpts{ //nolint:staticcheck // As above.
			Context:    ctx,
			BaseConfig: &http.Server{Handler: inner, ReadHeaderTimeout: time.Minute},
		})
}

// machineOf returns the key of the machine whose connection the request came
// over.
func machineOf(r *http.Request) key.MachinePublic {
	machine, _ := r.Context().Value(machineKey{}).(key.MachinePublic)
	return machine
}

func readJSON(r *http.Request, into any) error {
	return json.NewDecoder(io.LimitReader(r.Body, maxMessage)).Decode(into)
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// changed tells every waiter; s.mu is held.
func (s *Server) changed() {
	close(s.changes)
	s.changes = make(chan struct{})
}
