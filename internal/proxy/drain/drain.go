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

// Package drain decides how a proxy that was told to stop gets there. It is
// pure.
package drain

import "time"

const (
	// Settle is how long clients may still arrive after their endpoint was
	// withdrawn. A proxy that carried nothing at that time does not wait for it.
	Settle = 3 * time.Second
	// Idle is how long no flow must have been open.
	Idle = time.Second
	// ResetTime is how long flows that are still open after the cap are reset by
	// their next packet.
	ResetTime = 2 * time.Second
	// Poll is how often open flows are to be counted.
	Poll = 250 * time.Millisecond
)

// Phase of a drain.
type Phase int

// The phases, in their order.
const (
	// Serving: open flows go on and new ones are taken.
	Serving Phase = iota
	// Resetting: no flow goes on.
	Resetting
	// Done: the proxy can exit.
	Done
)

// Drain is one.
type Drain struct {
	begun, cap, lastOpen time.Time
	sawFlows             bool
	// resetAt is when flows began to be reset; zero before.
	resetAt time.Time
}

// Begin starts a drain that lasts at most that long before flows are reset.
func Begin(now time.Time, limit time.Duration) *Drain {
	return &Drain{begun: now, cap: now.Add(limit), lastOpen: now}
}

// Step returns the phase at a time when so many flows are open; fewer than 0 says
// that they could not be counted.
func (d *Drain) Step(now time.Time, open int) Phase {
	if open != 0 {
		d.sawFlows, d.lastOpen = true, now
	}
	if d.resetAt.IsZero() {
		switch {
		case now.Sub(d.lastOpen) >= Idle && (!d.sawFlows || now.Sub(d.begun) >= Settle):
			return Done
		case now.Before(d.cap):
			return Serving
		case open == 0:
			return Done
		}
		d.resetAt = now
	}
	// The clients' next packets have to meet somebody who resets them.
	if now.Sub(d.resetAt) >= ResetTime {
		return Done
	}
	return Resetting
}
