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
	"fmt"
	"net/http"
	"slices"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// user owns every node.
const user = tailcfg.UserID(1)

// AuthKey lets nodes register.
type AuthKey struct {
	Key string
	// Reusable keys register any number of nodes, others one.
	Reusable bool
	// Ephemeral nodes are deleted when they log out.
	Ephemeral bool
	Tags      []string
	// Expires is zero for never.
	Expires time.Time
	// Uses counts the registrations.
	Uses int
}

func (s *Server) serveRegister(w http.ResponseWriter, r *http.Request) {
	var req tailcfg.RegisterRequest
	if err := readJSON(r, &req); err != nil {
		http.Error(w, fmt.Sprintf("reading a registration: %v", err), http.StatusBadRequest)
		return
	}
	if req.Followup != "" {
		// The node waits for a person to visit its login page. Nobody does.
		<-r.Context().Done()
		return
	}
	s.mu.Lock()
	resp := s.register(&req, machineOf(r), time.Now())
	s.changed()
	s.mu.Unlock()
	s.opts.Logf("control: registration of %q: error %q, key expired %v, login page %v",
		hostnameOf(&req), resp.Error, resp.NodeKeyExpired, resp.AuthURL != "")
	writeJSON(w, resp)
}

func hostnameOf(req *tailcfg.RegisterRequest) string {
	if req.Hostinfo == nil {
		return ""
	}
	return req.Hostinfo.Hostname
}

// register decides on a registration; s.mu is held.
func (s *Server) register(req *tailcfg.RegisterRequest, machine key.MachinePublic, now time.Time) *tailcfg.RegisterResponse {
	known := s.byKey(req.NodeKey)
	if known != nil && known.machine != machine {
		return &tailcfg.RegisterResponse{Error: "node key belongs to another machine"}
	}
	if !req.Expiry.IsZero() && req.Expiry.Before(now) {
		s.logOut(known, now)
		return &tailcfg.RegisterResponse{NodeKeyExpired: true, MachineAuthorized: true}
	}
	if known != nil {
		if known.expired(now) {
			return &tailcfg.RegisterResponse{NodeKeyExpired: true, MachineAuthorized: true}
		}
		s.setHostinfo(known, req.Hostinfo)
		return s.accepted()
	}
	if req.Auth == nil || req.Auth.AuthKey == "" {
		return &tailcfg.RegisterResponse{
			AuthURL: fmt.Sprintf("%s/a/%s", s.opts.URL, req.NodeKey.ShortString()),
		}
	}
	authKey, err := s.redeem(req.Auth.AuthKey, now)
	if err != nil {
		return &tailcfg.RegisterResponse{Error: err.Error()}
	}
	// A machine that logs in again keeps its place, with another node key.
	n := s.byMachine(machine)
	if n == nil {
		n = s.newNode(req.Hostinfo, machine)
	} else {
		s.setHostinfo(n, req.Hostinfo)
	}
	n.key, n.version, n.expiry = req.NodeKey, req.Version, time.Time{}
	n.tags, n.authKey = slices.Clone(authKey.Tags), authKey.Key
	n.ephemeral = authKey.Ephemeral || req.Ephemeral
	delete(s.deleted, req.NodeKey)
	return s.accepted()
}

func (s *Server) accepted() *tailcfg.RegisterResponse {
	return &tailcfg.RegisterResponse{
		MachineAuthorized: true,
		User:              tailcfg.User{ID: user, DisplayName: "Test"},
		Login:             tailcfg.Login{ID: tailcfg.LoginID(user), Provider: "test", LoginName: "test@" + s.opts.Domain},
	}
}

func (s *Server) logOut(n *node, now time.Time) {
	switch {
	case n == nil:
	case n.ephemeral:
		s.forget(n, now)
	default:
		n.expiry = now
	}
}

// redeem returns the valid key of that value and counts its use.
func (s *Server) redeem(value string, now time.Time) (*AuthKey, error) {
	k := s.authKeys[value]
	switch {
	case k == nil:
		return nil, fmt.Errorf("invalid key: unable to validate API key")
	case !k.Expires.IsZero() && !now.Before(k.Expires):
		return nil, fmt.Errorf("invalid key: API key has expired")
	case k.Uses > 0 && !k.Reusable:
		return nil, fmt.Errorf("invalid key: API key was already used")
	}
	k.Uses++
	return k, nil
}
