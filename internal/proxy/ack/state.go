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

package ack

import (
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tailnet-egress/egress-operator/internal/proxy/object"
)

// State remembers what tailscaled keeps in its Secret. tailscaled writes a key
// only when its value changes, so that a Secret that was deleted and made again
// would stay without the device's identity.
type State struct {
	uid  types.UID
	keys map[string][]byte
}

// Saw is told what the Secret holds, nil where there is none, and returns the
// keys that belong into it.
func (s *State) Saw(c *object.Content) map[string][]byte {
	if c == nil {
		return s.keys
	}
	if c.UID == s.uid || s.keys == nil {
		// What is missing here was removed by tailscaled itself.
		s.keys = map[string][]byte{}
	} else {
		s.keys = maps.Clone(s.keys)
	}
	s.uid = c.UID
	for key, value := range c.Data {
		// The rest is not tailscaled's state (tailscale.com/ipn, type StateKey).
		if strings.HasPrefix(key, "_") || strings.HasPrefix(key, "profile-") {
			s.keys[key] = value
		}
	}
	return s.keys
}
