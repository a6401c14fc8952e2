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

package main

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What is measured at which number of mappings; today's code fails beyond 1,023
// targets and takes tens of seconds for 1,000.
var (
	programmed = []int{100, 1000, 10000, 50000}
	carried    = []int{2, 1000, 50000}
)

const todayMost = 1000

func measure(p *path, rounds int) ([]Result, error) {
	var out []Result
	for _, n := range programmed {
		fmt.Printf("programming %d mappings from nothing\n", n)
		row, err := compare(n, rounds, "program from nothing", "ms", func(today bool) ([]float64, error) {
			took, err := p.program(n, today)
			return []float64{millis(took)}, err
		})
		if err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	change, err := changeOne(p, 50000, 20*rounds)
	if err != nil {
		return nil, err
	}
	out = append(out, change)
	for _, n := range carried {
		fmt.Printf("carrying traffic with %d mappings\n", n)
		rows, err := carry(p, n, rounds)
		if err != nil {
			return nil, err
		}
		out = append(out, rows...)
	}
	return out, nil
}

func (p *path) program(n int, today bool) (time.Duration, error) {
	if err := p.clear(); err != nil {
		return 0, err
	}
	// A new programmer knows nothing of what the last one programmed.
	if err := p.reopen(); err != nil {
		return 0, err
	}
	settle()
	if today {
		return p.programToday(n)
	}
	return p.programOurs(n)
}

// compare alternates ours and today's; today's is asked for fewer rounds where it
// takes seconds.
func compare(n, rounds int, metric, unit string, sample func(today bool) ([]float64, error)) (Result, error) {
	var ours, today []float64
	for round := range rounds {
		got, err := sample(false)
		if err != nil {
			return Result{}, fmt.Errorf("%s, %d mappings: %w", metric, n, err)
		}
		ours = append(ours, got...)
		if n > todayMost || (n == todayMost && round >= 3) {
			continue
		}
		if got, err = sample(true); err != nil {
			return Result{}, fmt.Errorf("%s, %d mappings, today's code: %w", metric, n, err)
		}
		today = append(today, got...)
	}
	row := Result{Metric: metric, Mappings: n, Unit: unit, Rounds: rounds}
	row.Ours, row.OursSpread = median(ours)
	if len(today) > 0 {
		mid, _ := median(today)
		row.Today = &mid
	}
	return row, nil
}

// changeOne moves one of n mappings back and forth.
func changeOne(p *path, n, times int) (Result, error) {
	if _, err := p.program(n, false); err != nil {
		return Result{}, err
	}
	settle()
	var samples []float64
	for i := range times {
		want := ruleset(n, i%2 == 0)
		started := time.Now()
		changed, err := p.programmer.Apply(want)
		if err != nil || !changed {
			return Result{}, fmt.Errorf("changing one of %d mappings: changed %v, %w", n, changed, err)
		}
		samples = append(samples, millis(time.Since(started)))
	}
	row := Result{Metric: "change one (apply)", Mappings: n, Unit: "ms", Rounds: times}
	row.Ours, row.OursSpread = median(samples)
	return row, nil
}

func carry(p *path, n, rounds int) ([]Result, error) {
	var connect, stream [2][]float64
	for side, today := range []bool{false, true} {
		if today && n > todayMost {
			continue
		}
		if _, err := p.program(n, today); err != nil {
			return nil, err
		}
		settle()
		for range rounds {
			latencies, err := p.connects(100)
			if err != nil {
				return nil, err
			}
			mid, _ := median(latencies)
			connect[side] = append(connect[side], mid)
			rate, err := p.stream()
			if err != nil {
				return nil, err
			}
			stream[side] = append(stream[side], rate)
		}
	}
	return []Result{
		row("TCP connect, p50", "ms", n, rounds, connect),
		row("one TCP stream, MSS 600", "Gbit/s", n, rounds, stream),
	}, nil
}

func row(metric, unit string, n, rounds int, sides [2][]float64) Result {
	r := Result{Metric: metric, Mappings: n, Unit: unit, Rounds: rounds}
	r.Ours, r.OursSpread = median(sides[0])
	if len(sides[1]) > 0 {
		mid, _ := median(sides[1])
		r.Today = &mid
	}
	return r
}

// dialSmall connects with small segments, so that what a packet costs shows.
func dialSmall(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if controlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, smallMSS)
		}); controlErr != nil {
			return controlErr
		}
		return err
	}}
	return dialer.DialContext(ctx, "tcp4", address)
}
