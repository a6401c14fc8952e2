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

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// attempt is one line of the test Pod's program.
type attempt struct {
	at   time.Time
	took time.Duration
	ok   bool
	got  string
}

// run is a client that works in the background.
type run struct {
	done chan struct{}
	out  string
}

// start runs the test Pod's program in the first client.
func start(ctx context.Context, args ...string) *run {
	r := &run{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		// It fails where an attempt failed, which each test judges for itself.
		r.out, _ = bed.Exec(ctx, app, clients[0], args...)
	}()
	return r
}

// attempts waits for the end.
func (r *run) attempts(ctx context.Context) []attempt {
	GinkgoHelper()
	select {
	case <-r.done:
	case <-ctx.Done():
		Fail("the client did not end in time")
	}
	var out []attempt
	for line := range strings.Lines(r.out) {
		fields := strings.SplitN(strings.TrimSpace(line), " ", 4)
		if len(fields) < 3 {
			continue
		}
		millis, err := strconv.ParseInt(fields[0], 10, 64)
		Expect(err).NotTo(HaveOccurred(), line)
		took, err := time.ParseDuration(fields[1])
		Expect(err).NotTo(HaveOccurred(), line)
		a := attempt{at: time.UnixMilli(millis), took: took, ok: fields[2] == "ok"}
		if len(fields) == 4 {
			a.got = fields[3]
		}
		out = append(out, a)
	}
	Expect(out).NotTo(BeEmpty(), "the client printed nothing: %s", r.out)
	return out
}

// firstOK is when the first attempt at or after a moment succeeded.
func firstOK(attempts []attempt, from time.Time) time.Time {
	GinkgoHelper()
	for _, a := range attempts {
		if a.ok && !a.at.Before(from.Truncate(time.Millisecond)) {
			return a.at.Add(a.took)
		}
	}
	Fail(fmt.Sprintf("nothing succeeded after %s: %v", from, tail(attempts)))
	return time.Time{}
}

// failures are those that did not succeed.
func failures(attempts []attempt) (out []attempt) {
	for _, a := range attempts {
		if !a.ok {
			out = append(out, a)
		}
	}
	return out
}

func tail(attempts []attempt) []attempt { return attempts[max(0, len(attempts)-5):] }
