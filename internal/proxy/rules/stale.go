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

package rules

import (
	"net/netip"
	"slices"
)

// Flow is a connection that the proxy forwards, as conntrack knows it.
type Flow struct {
	// Protocol is the number of the transport protocol.
	Protocol uint8
	// Port is the one that the client dialled; 0 where the protocol has none.
	Port uint16
	// To is where it leads; port 0 where the protocol has none.
	To netip.AddrPort
	// From is the address that the target sees: the proxy's own on the tailnet.
	From netip.Addr
}

// Stale is whether a new connection like f would not go the way that f goes: its
// target moved or is gone, or the proxy has another address. The kernel keeps
// such a flow as it is until its conntrack entry is removed.
func (r Ruleset) Stale(f Flow) bool {
	t := r.IPv4
	if IPv6.has(f.To.Addr()) {
		t = r.IPv6
	}
	if f.From != t.Own {
		return true
	}
	if t.All.IsValid() {
		return f.To.Addr() != t.All
	}
	i, found := slices.BinarySearchFunc(t.Elements, Key{Protocol: f.Protocol, Port: f.Port},
		func(e Element, k Key) int { return e.Compare(k) })
	return !found || t.Elements[i].To != f.To
}
