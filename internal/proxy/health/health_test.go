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

package health

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func get(h *Health, path string) (int, string) {
	w := httptest.NewRecorder()
	h.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestAliveWhileTheLoopBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New()
		time.Sleep(Stuck)
		if code, body := get(h, "/healthz"); code != http.StatusOK {
			t.Errorf("after %s: %d %s", Stuck, code, body)
		}
		time.Sleep(5 * time.Second)
		if code, body := get(h, "/healthz"); code != http.StatusServiceUnavailable || body != "The loop has been stuck for 35s" {
			t.Errorf("stuck: %d %s", code, body)
		}
		h.Beat(time.Now())
		if code, _ := get(h, "/healthz"); code != http.StatusOK {
			t.Errorf("after another beat: %d", code)
		}
	})
}

func TestReady(t *testing.T) {
	h := New()
	if code, body := get(h, "/readyz"); code != http.StatusServiceUnavailable || body != "The proxy has just started" {
		t.Errorf("at first: %d %s", code, body)
	}
	h.SetReady()
	if code, body := get(h, "/readyz"); code != http.StatusOK || body != "ok" {
		t.Errorf("ready: %d %s", code, body)
	}
	h.SetNotReady("It is draining")
	if code, body := get(h, "/readyz"); code != http.StatusServiceUnavailable || body != "It is draining" {
		t.Errorf("no longer ready: %d %s", code, body)
	}
}

func TestMetrics(t *testing.T) {
	h := New()
	h.Targets.WithLabelValues("TargetNotFound").Set(2)
	h.Mappings.Set(7)
	h.Repairs.Inc()
	code, body := get(h, "/metrics")
	for _, want := range []string{`egress_proxy_targets{state="TargetNotFound"} 2`, "egress_proxy_mappings 7", "egress_proxy_repairs_total 1", "egress_proxy_apply_seconds_count 0"} {
		if code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%d, no %s in\n%s", code, want, body)
		}
	}
}
