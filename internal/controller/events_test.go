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
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
)

type recordedEvents []string

func (r *recordedEvents) Eventf(_, _ runtime.Object, eventType, reason, action, note string, args ...any) {
	*r = append(*r, fmt.Sprintf("%s %s %s: %s", eventType, action, reason, fmt.Sprintf(note, args...)))
}

func TestEmitChanges(t *testing.T) {
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	type c struct {
		name            string
		status          metav1.ConditionStatus
		reason, message string
	}
	const long = 3000
	for _, tc := range []struct {
		name          string
		before, after []c
		want          []string
	}{
		{"nothing changed", []c{{"Ready", yes, "Ready", ""}}, []c{{"Ready", yes, "Ready", ""}}, nil},
		{"accepted, and waiting for the rest", nil,
			[]c{{"Accepted", yes, "Accepted", ""}, {"Resolved", unknown, v1alpha1.ReasonNotReported, "w"}, {"Ready", no, v1alpha1.ReasonNoReadyProxies, "x"}},
			[]string{"Normal Accepted Accepted: Accepted"}},
		{"Ready repeats", nil,
			[]c{{"Resolved", no, v1alpha1.ReasonTargetNotFound, "no 100% match"}, {"Ready", no, v1alpha1.ReasonTargetNotFound, "no 100% match"}},
			[]string{"Warning Resolved TargetNotFound: no 100% match"}},
		{"moved", []c{{"Resolved", yes, "Resolved", "db is 1"}}, []c{{"Resolved", yes, "Resolved", "db is 2"}},
			[]string{"Normal Resolved Resolved: db is 2"}},
		{"another sentence about the same", []c{{"Ready", no, "TargetNotFound", "a"}}, []c{{"Ready", no, "TargetNotFound", "b"}}, nil},
		{"longer than the API server takes", nil, []c{{"Accepted", no, "Invalid", strings.Repeat("é", long)}},
			[]string{"Warning Accepted Invalid: " + strings.Repeat("é", 510) + "…"}},
		{"lost", []c{{"Ready", yes, "Ready", ""}}, []c{{"Ready", no, v1alpha1.ReasonNoReadyProxies, "Pod p is draining"}},
			[]string{"Warning Ready NoReadyProxies: Pod p is draining"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var before []metav1.Condition
			for _, b := range tc.before {
				before = append(before, metav1.Condition{Type: b.name, Status: b.status, Reason: b.reason, Message: b.message})
			}
			var after []metav1ac.ConditionApplyConfiguration
			for _, a := range tc.after {
				after = append(after, *metav1ac.Condition().WithType(a.name).WithStatus(a.status).WithReason(a.reason).WithMessage(a.message))
			}
			var got recordedEvents
			emitChanges(&got, &v1alpha1.EgressTarget{}, before, after)
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
