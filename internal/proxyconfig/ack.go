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

package proxyconfig

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Reason says why a target has no address in use.
type Reason string

// The reasons that a proxy reports.
const (
	TargetNotFound           Reason = "TargetNotFound"
	NoAddresses              Reason = "NoAddresses"
	NoRouteToTarget          Reason = "NoRouteToTarget"
	AddressFamilyUnsupported Reason = "AddressFamilyUnsupported"
	// ProgrammingFailed: the kernel refused the rules, so the last good ones stay.
	ProgrammingFailed Reason = "ProgrammingFailed"
	// InvalidTarget: the config's entry for the target breaks a rule.
	InvalidTarget Reason = "InvalidTarget"
)

// Ack is what one proxy Pod has programmed.
type Ack struct {
	Version int `json:"version"`
	// PodUID tells this Pod from an earlier one of its name.
	PodUID string       `json:"podUID"`
	PodIPs []netip.Addr `json:"podIPs"`
	// ConfigGeneration is the generation of the Config that was applied.
	ConfigGeneration int64 `json:"configGeneration"`
	// Connected is whether the proxy is logged in and its tunnel is up.
	Connected bool `json:"connected"`
	// Message says in a sentence why the proxy is not connected.
	Message string `json:"message,omitempty"`
	// TailnetIPs are the proxy's own addresses on the tailnet.
	TailnetIPs []netip.Addr `json:"tailnetIPs,omitempty"`
	// Draining is whether the proxy was told to stop.
	Draining bool `json:"draining,omitempty"`
	// Targets are sorted by ID.
	Targets []TargetAck `json:"targets"`
}

// TargetAck is what a proxy programmed for one target.
type TargetAck struct {
	ID       string `json:"id"`
	Revision string `json:"revision"`
	// Addresses in use; none means that clients are refused, and Reason says why.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Reason    Reason       `json:"reason,omitempty"`
	// Message is a sentence for people.
	Message string `json:"message,omitempty"`
}

// Encode returns the canonical bytes of a. It fails only above MaxBytes.
func (a Ack) Encode() ([]byte, error) {
	a.Version = Version
	a.Targets = slices.Clone(a.Targets)
	slices.SortFunc(a.Targets, func(x, y TargetAck) int { return strings.Compare(x.ID, y.ID) })
	if a.Targets == nil {
		a.Targets = []TargetAck{}
	}
	return encode(a)
}

// DecodeAck reads an Ack. Unknown fields are ignored.
func DecodeAck(data []byte) (Ack, error) {
	var a Ack
	if err := decode(data, &a, &a.Version); err != nil {
		return Ack{}, fmt.Errorf("ack: %w", err)
	}
	return a, nil
}

// Target finds what was programmed for a target by its ID.
func (a Ack) Target(id string) (TargetAck, bool) {
	i, found := slices.BinarySearchFunc(a.Targets, id, func(t TargetAck, id string) int {
		return strings.Compare(t.ID, id)
	})
	if !found {
		return TargetAck{}, false
	}
	return a.Targets[i], true
}
