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

package control

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
	"tailscale.com/util/zstdframe"
)

// keepAlive is the time between messages on an idle stream. Clients give up
// after two minutes.
const keepAlive = 50 * time.Second

func (s *Server) serveMap(w http.ResponseWriter, r *http.Request) {
	var req tailcfg.MapRequest
	if err := readJSON(r, &req); err != nil {
		http.Error(w, fmt.Sprintf("reading a map request: %v", err), http.StatusBadRequest)
		return
	}
	if !s.admit(&req, machineOf(r)) {
		http.Error(w, "node not found", http.StatusNotFound)
		return
	}
	out := &stream{w: w, compress: req.Compress != ""}
	switch {
	case req.Stream:
		s.stream(r.Context(), out, &req)
	case req.OmitPeers:
		// An update that expects no answer.
		w.WriteHeader(http.StatusOK)
	default:
		s.once(out, &req)
	}
}

// admit takes what the request says of its node, and reports whether the node
// is, or was, one.
func (s *Server) admit(req *tailcfg.MapRequest, machine key.MachinePublic) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.byKey(req.NodeKey)
	if n == nil {
		gone := s.deleted[req.NodeKey]
		return gone != nil && gone.Machine == machine
	}
	if n.machine != machine {
		return false
	}
	// A stream's request does not speak for the node, its other requests do.
	if req.Stream {
		return true
	}
	n.disco, n.version = req.DiscoKey, req.Version
	n.endpoints = slices.DeleteFunc(req.Endpoints, func(ep netip.AddrPort) bool {
		return ep.Addr().Zone() != "" || ep.Addr().IsLinkLocalUnicast()
	})
	if req.Hostinfo != nil {
		s.setHostinfo(n, req.Hostinfo)
	}
	s.changed()
	return true
}

// once answers with the netmap as it is.
func (s *Server) once(out *stream, req *tailcfg.MapRequest) {
	s.mu.Lock()
	v := s.view(req.NodeKey, time.Now())
	s.mu.Unlock()
	if v == nil {
		return
	}
	if resp, err := (&told{}).next(v); err == nil {
		_ = out.send(s.complete(resp))
	}
}

// stream sends the netmap and every change of it until the node hangs up.
func (s *Server) stream(ctx context.Context, out *stream, req *tailcfg.MapRequest) {
	defer s.opened(req.NodeKey)()
	var sent told
	idle := time.NewTimer(keepAlive)
	defer idle.Stop()
	for {
		first := !sent.started
		s.mu.Lock()
		v, changes := s.view(req.NodeKey, time.Now()), s.changes
		s.mu.Unlock()
		if v == nil {
			return
		}
		resp, err := sent.next(v)
		if err != nil {
			s.opts.Logf("control: netmap of %s: %v", v.self.Name, err)
			return
		}
		if first {
			resp = s.complete(resp)
		}
		if resp != nil {
			now := time.Now().UTC()
			resp.ControlTime = &now
			if out.send(resp) != nil {
				return
			}
			idle.Reset(keepAlive)
		}
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-idle.C:
			if out.send(&tailcfg.MapResponse{KeepAlive: true}) != nil {
				return
			}
			idle.Reset(keepAlive)
		}
	}
}

// opened counts a stream of the node, until the returned function is called.
func (s *Server) opened(k key.NodePublic) (closed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.byKey(k)
	if n == nil {
		return func() {}
	}
	n.sessions++
	n.streams++
	s.changed()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		n.sessions--
		n.lastSeen = time.Now()
		s.changed()
		time.AfterFunc(onlineGrace+100*time.Millisecond, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed()
		})
	}
}

// complete adds what a stream's first message has to hold and never changes.
func (s *Server) complete(resp *tailcfg.MapResponse) *tailcfg.MapResponse {
	resp.DERPMap = s.opts.DERPMap
	resp.Domain = s.opts.Domain
	resp.PacketFilter = tailcfg.FilterAllowAll
	resp.CollectServices = "false"
	resp.UserProfiles = []tailcfg.UserProfile{{
		ID: user, LoginName: "test@" + s.opts.Domain, DisplayName: "Test",
	}}
	return resp
}

// stream writes framed messages: their length in 4 bytes, little endian, and
// JSON that is compressed where the node asked for it.
type stream struct {
	w        http.ResponseWriter
	compress bool
}

func (o *stream) send(resp *tailcfg.MapResponse) error {
	body, err := json.Marshal(resp)
	if err != nil {
		return err
	}
	if o.compress {
		body = zstdframe.AppendEncode(nil, body, zstdframe.FastestCompression)
	}
	frame := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	if _, err := o.w.Write(append(frame, body...)); err != nil {
		return err
	}
	return http.NewResponseController(o.w).Flush()
}
