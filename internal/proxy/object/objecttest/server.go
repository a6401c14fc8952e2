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

// Package objecttest serves Secrets and ConfigMaps as an API server does, as far
// as a proxy uses it.
package objecttest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Server is an API server of one namespace.
type Server struct {
	mu      sync.Mutex
	version int
	objects map[string]*entry // by <kind>/<name>
	events  []event
	news    chan struct{}
	away    bool
	patches int
	lists   int
}

type entry struct {
	uid, version int
	data         map[string]string
}

type event struct {
	version int
	key     string
	kind    string
	object  map[string]any
}

// New has no objects.
func New() *Server {
	return &Server{objects: map[string]*entry{}, news: make(chan struct{})}
}

// Put creates or replaces an object, <kind>/<name> such as secrets/a.
func (s *Server) Put(key string, data map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	kind := "MODIFIED"
	if s.objects[key] == nil {
		kind = "ADDED"
		s.objects[key] = &entry{uid: s.version}
	}
	s.objects[key].version, s.objects[key].data = s.version, maps.Clone(data)
	if s.objects[key].data == nil {
		s.objects[key].data = map[string]string{}
	}
	s.tell(kind, key)
}

// Set changes one key of an object that exists.
func (s *Server) Set(key, field, value string) {
	data := s.Get(key)
	data[field] = value
	s.Put(key, data)
}

// Delete removes an object.
func (s *Server) Delete(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.objects[key].version = s.version
	s.tell("DELETED", key)
	delete(s.objects, key)
}

// Get is an object's data; nil where there is none.
func (s *Server) Get(key string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[key]; o != nil {
		return maps.Clone(o.data)
	}
	return nil
}

// Patches and Lists count requests.
func (s *Server) Patches() int { s.mu.Lock(); defer s.mu.Unlock(); return s.patches }

// Lists counts the requests that list.
func (s *Server) Lists() int { s.mu.Lock(); defer s.mu.Unlock(); return s.lists }

// SetAway ends all watches and answers nothing but errors until it is called
// with false.
func (s *Server) SetAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
	s.announce()
}

func (s *Server) announce() {
	close(s.news)
	s.news = make(chan struct{})
}

func (s *Server) tell(kind, key string) {
	s.events = append(s.events, event{version: s.version, key: key, kind: kind, object: s.wire(key)})
	s.announce()
}

func (s *Server) wire(key string) map[string]any {
	kind, name, _ := strings.Cut(key, "/")
	o := s.objects[key]
	data := map[string]string{}
	for k, v := range o.data {
		if kind == "secrets" {
			v = base64.StdEncoding.EncodeToString([]byte(v))
		}
		data[k] = v
	}
	return map[string]any{
		"apiVersion": "v1", "kind": map[string]string{"secrets": "Secret", "configmaps": "ConfigMap"}[kind],
		"metadata": map[string]any{"name": name, "uid": fmt.Sprint(o.uid), "resourceVersion": fmt.Sprint(o.version)}, "data": data,
	}
}

// ServeHTTP is the API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// /api/v1/namespaces/<namespace>/<kind>[/<name>]
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case away:
		fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
	case r.Method == http.MethodPatch && len(parts) == 6:
		s.patch(w, r, parts[4]+"/"+parts[5])
	case r.Method == http.MethodGet && len(parts) == 5:
		name, found := strings.CutPrefix(r.FormValue("fieldSelector"), "metadata.name=")
		if !found {
			fail(w, http.StatusForbidden, "Forbidden") // By RBAC.
			return
		}
		if r.FormValue("watch") == "true" {
			s.watch(w, r, parts[4]+"/"+name)
			return
		}
		s.list(w, parts[4], name)
	default:
		fail(w, http.StatusForbidden, "Forbidden")
	}
}

func fail(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason})
}

func (s *Server) list(w http.ResponseWriter, kind, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	items := []any{}
	if s.objects[kind+"/"+name] != nil {
		items = append(items, s.wire(kind+"/"+name))
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": "v1", "kind": map[string]string{"secrets": "SecretList", "configmaps": "ConfigMapList"}[kind],
		"metadata": map[string]any{"resourceVersion": fmt.Sprint(s.version)}, "items": items,
	})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, key string) {
	since, err := strconv.Atoi(r.FormValue("resourceVersion"))
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	end := time.After(5 * time.Minute)
	controller := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	for {
		_ = controller.Flush()
		s.mu.Lock()
		news, away := s.news, s.away
		var due []event
		for _, e := range s.events {
			if e.version > since && e.key == key {
				due = append(due, e)
			}
		}
		since = s.version
		s.mu.Unlock()
		if away {
			return
		}
		for _, e := range due {
			_ = encoder.Encode(map[string]any{"type": e.kind, "object": e.object})
		}
		_ = controller.Flush()
		select {
		case <-r.Context().Done():
			return
		case <-end:
			return
		case <-news:
		}
	}
}

func (s *Server) patch(w http.ResponseWriter, r *http.Request, key string) {
	var body struct{ Data map[string]string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patches++
	o := s.objects[key]
	if o == nil {
		fail(w, http.StatusNotFound, "NotFound")
		return
	}
	before := maps.Clone(o.data)
	for k, v := range body.Data {
		if strings.HasPrefix(key, "secrets/") {
			raw, err := base64.StdEncoding.DecodeString(v)
			if err != nil {
				fail(w, http.StatusBadRequest, "BadRequest")
				return
			}
			v = string(raw)
		}
		o.data[k] = v
	}
	if !maps.Equal(before, o.data) {
		s.version++
		o.version = s.version
		s.tell("MODIFIED", key)
	}
	_ = json.NewEncoder(w).Encode(s.wire(key))
}
