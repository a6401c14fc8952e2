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

// Package health answers a kubelet's probes and shows the proxy's metrics.
package health

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Stuck is how long a loop may be silent.
const Stuck = 30 * time.Second

// Health is what the proxy's loop tells of itself.
type Health struct {
	beat   atomic.Int64
	notYet atomic.Pointer[string]

	// Targets by state: "Resolved" or the reason why not.
	Targets *prometheus.GaugeVec
	// Mappings is the programmed listeners.
	Mappings prometheus.Gauge
	// Connected is 1 while the tunnel is up.
	Connected prometheus.Gauge
	// Generation of the config in force.
	Generation prometheus.Gauge
	// NetmapUpdates that a target could depend on.
	NetmapUpdates prometheus.Counter
	// ApplySeconds is the time from a change to the kernel's.
	ApplySeconds prometheus.Histogram
	// ApplyErrors of the kernel.
	ApplyErrors prometheus.Counter
	// Repairs of rules that others changed.
	Repairs prometheus.Counter

	registry *prometheus.Registry
}

// New is alive and not ready.
func New() *Health {
	h := &Health{
		Targets:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "egress_proxy_targets", Help: "Targets by state: Resolved, or the reason why not."}, []string{"state"}),
		Mappings:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "egress_proxy_mappings", Help: "Listeners that lead to a target."}),
		Connected:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "egress_proxy_connected", Help: "1 while the proxy is logged in and its tunnel is up."}),
		Generation:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "egress_proxy_config_generation", Help: "Generation of the config in force."}),
		NetmapUpdates: prometheus.NewCounter(prometheus.CounterOpts{Name: "egress_proxy_netmap_updates_total", Help: "Changes of the tailnet that a target could depend on."}),
		ApplySeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "egress_proxy_apply_seconds", Help: "Time to resolve the targets and change the kernel's rules.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}}),
		ApplyErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "egress_proxy_apply_errors_total", Help: "Changes that the kernel refused."}),
		Repairs:     prometheus.NewCounter(prometheus.CounterOpts{Name: "egress_proxy_repairs_total", Help: "Times that rules were put back after others had changed them."}),
		registry:    prometheus.NewRegistry(),
	}
	h.registry.MustRegister(h.Targets, h.Mappings, h.Connected, h.Generation, h.NetmapUpdates, h.ApplySeconds, h.ApplyErrors, h.Repairs,
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	h.Beat(time.Now())
	h.SetNotReady("The proxy has just started")
	return h
}

// Beat is called by the loop at least every Stuck.
func (h *Health) Beat(now time.Time) { h.beat.Store(now.UnixNano()) }

// SetReady is called when rules are programmed and the tunnel is up.
func (h *Health) SetReady() { h.notYet.Store(nil) }

// SetNotReady says in a sentence why not.
func (h *Health) SetNotReady(why string) { h.notYet.Store(&why) }

// Ready is whether clients should come, and otherwise why not.
func (h *Health) Ready() (why string, ready bool) {
	if why := h.notYet.Load(); why != nil {
		return *why, false
	}
	return "", true
}

// Handler serves /healthz, /readyz and /metrics.
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		silent := time.Since(time.Unix(0, h.beat.Load()))
		answer(w, silent <= Stuck, fmt.Sprintf("The loop has been stuck for %s", silent.Round(time.Second)))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		why, ready := h.Ready()
		answer(w, ready, why)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(h.registry, promhttp.HandlerOpts{}))
	return mux
}

func answer(w http.ResponseWriter, good bool, why string) {
	if !good {
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}
