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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/status"
)

// waiting are the reasons of conditions that time alone changes: nobody has to
// act on them, so they are an event only where something that was True is lost.
var waiting = map[string]bool{
	v1alpha1.ReasonNotReported:            true,
	v1alpha1.ReasonPending:                true,
	v1alpha1.ReasonNoReadyProxies:         true,
	v1alpha1.ReasonProxyPending:           true,
	v1alpha1.ReasonProxyGroupNotReady:     true,
	v1alpha1.ReasonConfigurationFailed:    true,
	v1alpha1.ReasonNotReadyToRouteTraffic: true,
}

// maxNote is the longest note of an event that API servers store, in bytes.
const maxNote = 1024

// emitChanges sends one event about object for each condition that changed:
// Normal where it became True, or is True with another message, and Warning
// where it did not. Conditions that say the same as one before them (Ready
// repeats what Accepted and Resolved say) send none.
func emitChanges(recorder events.EventRecorder, object runtime.Object, before []metav1.Condition, after []metav1ac.ConditionApplyConfiguration) {
	said := map[string]bool{}
	for _, condition := range conditions(after) {
		previous := meta.FindStatusCondition(before, condition.Type)
		key := condition.Reason + "\x00" + condition.Message
		if !changed(previous, condition) || said[key] {
			continue
		}
		said[key] = true
		wasTrue := previous != nil && previous.Status == metav1.ConditionTrue
		eventType := corev1.EventTypeNormal
		if condition.Status != metav1.ConditionTrue {
			if waiting[condition.Reason] && !wasTrue {
				continue
			}
			eventType = corev1.EventTypeWarning
		}
		note := condition.Message
		if note == "" {
			note = condition.Type
		}
		recorder.Eventf(object, nil, eventType, condition.Reason, condition.Type, "%s", status.Cut(note, maxNote))
	}
}

func changed(previous *metav1.Condition, now metav1.Condition) bool {
	return previous == nil || previous.Status != now.Status || previous.Reason != now.Reason ||
		now.Status == metav1.ConditionTrue && previous.Message != now.Message
}

// conditions in the order in which they are declared: what others repeat first.
func conditions(applied []metav1ac.ConditionApplyConfiguration) []metav1.Condition {
	out := make([]metav1.Condition, 0, len(applied))
	for _, c := range applied {
		out = append(out, metav1.Condition{
			Type: ptr.Deref(c.Type, ""), Status: ptr.Deref(c.Status, ""), ObservedGeneration: ptr.Deref(c.ObservedGeneration, 0),
			LastTransitionTime: ptr.Deref(c.LastTransitionTime, metav1.Time{}), Reason: ptr.Deref(c.Reason, ""), Message: ptr.Deref(c.Message, ""),
		})
	}
	return out
}
