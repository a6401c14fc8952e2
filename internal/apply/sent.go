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

package apply

import (
	"crypto/sha256"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Sent is what was applied last to each object, until a newer state of it is
// observed. Its zero value is ready to use, by many goroutines.
//
// It only ever holds back a repetition: the same content for the same observed
// resourceVersion, of which we know that our own write has replaced it. The watch
// event of that write brings the next pass.
type Sent struct {
	mu   sync.Mutex
	last map[sentKey]sentValue
}

type sentKey struct {
	uid         types.UID
	subresource string
}

type sentValue struct {
	resourceVersion string
	sum             [sha256.Size]byte
}

// already is whether body was sent for this state of live. Another state of live
// is newer: what was remembered is then forgotten.
func (s *Sent) already(live client.Object, subresource string, body []byte) bool {
	if s == nil || live == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := sentKey{live.GetUID(), subresource}
	last, ok := s.last[key]
	if ok && last.resourceVersion != live.GetResourceVersion() {
		delete(s.last, key)
		return false
	}
	return ok && last.sum == sha256.Sum256(body)
}

// behind is whether this state of live was replaced by a write of ours.
func (s *Sent) behind(live client.Object, subresource string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.last[sentKey{live.GetUID(), subresource}]
	return ok && last.resourceVersion == live.GetResourceVersion()
}

// remember that body replaced this state of live. A write that changed nothing is
// followed by no newer state, so there is nothing to wait for.
func (s *Sent) remember(live client.Object, subresource string, body []byte, written *unstructured.Unstructured) {
	if s == nil || live == nil || written.GetResourceVersion() == live.GetResourceVersion() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[sentKey]sentValue{}
	}
	s.last[sentKey{live.GetUID(), subresource}] = sentValue{live.GetResourceVersion(), sha256.Sum256(body)}
}
