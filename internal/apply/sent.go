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
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Sent is what was applied last to each object, until that or a newer state of it
// is observed. Its zero value is ready to use, by many goroutines.
//
// It only ever holds back a repetition: the same content for an observed state of
// which we know that our own write has replaced it. The watch event of that write
// brings the next pass.
type Sent struct {
	mu   sync.Mutex
	last map[sentKey]sentValue
}

type sentKey struct {
	uid         types.UID
	subresource string
}

// sentValue is a write and the resourceVersions that it was computed from and led
// to: states between them, which others wrote, lack it too.
type sentValue struct {
	from, to string
	sum      [sha256.Size]byte
}

func (v sentValue) replaced(live client.Object) bool {
	version := live.GetResourceVersion()
	return !older(version, v.from) && older(version, v.to)
}

func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// already is whether body was sent and this state of live replaced by it.
func (s *Sent) already(live client.Object, subresource string, body []byte) bool {
	last, ok := s.pending(live, subresource)
	return ok && last.sum == sha256.Sum256(body)
}

// behind is whether this state of live was replaced by a write of ours.
func (s *Sent) behind(live client.Object, subresource string) bool {
	_, ok := s.pending(live, subresource)
	return ok
}

// pending is the write that this state of live lacks. One that it does not lack
// is forgotten.
func (s *Sent) pending(live client.Object, subresource string) (sentValue, bool) {
	if s == nil || live == nil {
		return sentValue{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := sentKey{live.GetUID(), subresource}
	last, ok := s.last[key]
	if ok && !last.replaced(live) {
		delete(s.last, key)
		return sentValue{}, false
	}
	return last, ok
}

// remember that body replaced this state of live. A write that changed nothing is
// followed by no newer state, so there is nothing to wait for.
func (s *Sent) remember(live client.Object, subresource string, body []byte, written *unstructured.Unstructured) {
	if s == nil || live == nil || !older(live.GetResourceVersion(), written.GetResourceVersion()) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[sentKey]sentValue{}
	}
	s.last[sentKey{live.GetUID(), subresource}] = sentValue{
		from: live.GetResourceVersion(), to: written.GetResourceVersion(), sum: sha256.Sum256(body)}
}

// forget what was sent to an object that is going.
func (s *Sent) forget(live client.Object) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, subresource := range []string{"", statusSubresource} {
		delete(s.last, sentKey{live.GetUID(), subresource})
	}
}
