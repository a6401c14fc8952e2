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

package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
)

// scrapeTimeout bounds what a scrape may wait for a cache.
const scrapeTimeout = 5 * time.Second

// targetCollector counts EgressTargets by condition when it is scraped, from the
// cache: there is nothing to keep in step.
type targetCollector struct {
	reader      client.Reader
	description *prometheus.Desc
}

func newTargetCollector(reader client.Reader) targetCollector {
	return targetCollector{reader: reader, description: prometheus.NewDesc("egress_operator_targets",
		"Number of EgressTargets by condition, its status and its reason.", []string{"condition", "status", "reason"}, nil)}
}

func registerMetrics(reader client.Reader) error {
	err := metrics.Registry.Register(newTargetCollector(reader))
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		// A second manager in one process, as tests have it.
		metrics.Registry.Unregister(already.ExistingCollector)
		err = metrics.Registry.Register(newTargetCollector(reader))
	}
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (c targetCollector) Describe(out chan<- *prometheus.Desc) { out <- c.description }

// Collect implements prometheus.Collector.
func (c targetCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	var targets v1alpha1.EgressTargetList
	if err := c.reader.List(ctx, &targets); err != nil {
		out <- prometheus.NewInvalidMetric(c.description, err)
		return
	}
	counts := map[[3]string]int{}
	for _, target := range targets.Items {
		for _, condition := range target.Status.Conditions {
			counts[[3]string{condition.Type, string(condition.Status), condition.Reason}]++
		}
	}
	for key, count := range counts {
		out <- prometheus.MustNewConstMetric(c.description, prometheus.GaugeValue, float64(count), key[0], key[1], key[2])
	}
}
