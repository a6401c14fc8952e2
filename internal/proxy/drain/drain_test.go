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

package drain

import (
	"testing"
	"time"
)

func TestDrain(t *testing.T) {
	const s = time.Second
	type at struct {
		after time.Duration
		open  int
		want  Phase
	}
	cases := map[string][]at{
		"nothing open ends soon":           {{0, 0, Serving}, {s / 2, 0, Serving}, {s, 0, Done}},
		"a flow may finish":                {{0, 1, Serving}, {9 * s, 1, Serving}, {9*s + s/2, 0, Serving}, {10 * s, 0, Done}},
		"a short flow, then others arrive": {{0, 1, Serving}, {s / 2, 0, Serving}, {2 * s, 0, Serving}, {2*s + s/2, 1, Serving}, {3 * s, 0, Serving}, {3*s + s/2, 0, Done}},
		"one arrives late":                 {{0, 0, Serving}, {s / 2, 2, Serving}, {2 * s, 0, Serving}, {3 * s, 0, Done}},
		"after the cap flows are reset":    {{0, 3, Serving}, {20*s - 1, 3, Serving}, {20 * s, 3, Resetting}, {21 * s, 2, Resetting}, {22 * s, 1, Done}},
		"resetting outlives its flows":     {{0, 1, Serving}, {20 * s, 1, Resetting}, {20*s + s/4, 0, Resetting}, {21*s + s/2, 0, Resetting}, {22 * s, 0, Done}},
		"the last ends at the cap":         {{0, 1, Serving}, {19*s + s/2, 1, Serving}, {20 * s, 0, Done}},
		"flows cannot be counted":          {{0, -1, Serving}, {19 * s, -1, Serving}, {20 * s, -1, Resetting}, {22 * s, -1, Done}},
	}
	for what, steps := range cases {
		t.Run(what, func(t *testing.T) {
			begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			d := Begin(begun, 20*s)
			for _, step := range steps {
				if got := d.Step(begun.Add(step.after), step.open); got != step.want {
					t.Fatalf("after %s with %d open: phase %d, want %d", step.after, step.open, got, step.want)
				}
			}
		})
	}
}

func TestWithoutTimeFlowsAreResetAtOnce(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	d := Begin(now, 0)
	if got := d.Step(now, 1); got != Resetting {
		t.Errorf("phase %d", got)
	}
}
