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

// Command bench compares the proxy's rules with the code that people run today,
// tailscale.com/util/linuxfw called the way Tailscale's proxy calls it, in one
// run on one machine: client, proxy and target are network namespaces, and a
// veth named tailscale0 stands for the tunnel, so that the rules alone differ.
//
// It prints a table and writes it as JSON. It needs root.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tailnet-egress/egress-operator/test/netlab"
)

// Result is one row of the table.
type Result struct {
	Metric string `json:"metric"`
	// Mappings is how many there are.
	Mappings int `json:"mappings"`
	// Ours and Today are medians in Unit; Today is absent where today's code cannot
	// do it, or takes too long.
	Ours  float64  `json:"ours"`
	Today *float64 `json:"today,omitempty"`
	// OursSpread is the interquartile range, in Unit.
	OursSpread float64 `json:"oursSpread"`
	Unit       string  `json:"unit"`
	Rounds     int     `json:"rounds"`
}

// Report is the whole of a run.
type Report struct {
	Kernel   string            `json:"kernel"`
	Go       string            `json:"go"`
	CPUs     int               `json:"cpus"`
	Versions map[string]string `json:"versions"`
	Results  []Result          `json:"results"`
}

func main() {
	rounds := flag.Int("rounds", 10, "rounds of each measurement, ours and today's in turn")
	out := flag.String("json", "", "file for the report as JSON")
	flag.Parse()
	if err := run(*rounds, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(rounds int, out string) error {
	if why := netlab.Missing(); why != "" {
		return fmt.Errorf("%s", why)
	}
	path, err := newPath()
	if err != nil {
		return err
	}
	defer path.close()
	results, err := measure(path, rounds)
	if err != nil {
		return err
	}
	report := Report{Kernel: kernel(), Go: runtime.Version(), CPUs: runtime.NumCPU(), Versions: versions(), Results: results}
	report.print()
	if out == "" {
		return nil
	}
	data, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(data, '\n'), 0o644)
}

func (r Report) print() {
	fmt.Printf("\nLinux %s, %s, %d CPUs, %v\n\n", r.Kernel, r.Go, r.CPUs, r.Versions)
	fmt.Printf("| %-34s | %8s | %16s | %12s | %9s |\n| %s | %s | %s | %s | %s |\n", "metric (medians)", "mappings", "ours (spread)", "today's", "ratio",
		strings.Repeat("-", 34), strings.Repeat("-", 8), strings.Repeat("-", 16), strings.Repeat("-", 12), strings.Repeat("-", 9))
	for _, row := range r.Results {
		today, ratio := "–", "–"
		if row.Today != nil {
			today = fmt.Sprintf("%.2f %s", *row.Today, row.Unit)
			ratio = fmt.Sprintf("%.2f", row.Ours / *row.Today)
		}
		ours := fmt.Sprintf("%.2f (%.2f) %s", row.Ours, row.OursSpread, row.Unit)
		fmt.Printf("| %-34s | %8d | %16s | %12s | %9s |\n", row.Metric, row.Mappings, ours, today, ratio)
	}
}

// median and spread (interquartile range) of samples.
func median(samples []float64) (mid, spread float64) {
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	return sorted[n/2], sorted[n*3/4] - sorted[n/4]
}

func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

func versions() map[string]string {
	versions := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "tailscale.com" || dep.Path == "github.com/google/nftables" {
				versions[dep.Path] = dep.Version
			}
		}
	}
	return versions
}
