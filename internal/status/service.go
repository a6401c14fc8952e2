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

package status

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
)

// ServiceTypes are all condition types that a Service can have of us; which of
// them it has depends on its mode.
var ServiceTypes = []string{
	v1alpha1.ServiceProxyReady,
	v1alpha1.ServiceEgressValid, v1alpha1.ServiceEgressConfigured, v1alpha1.ServiceEgressReady,
}

// notReported is said of a target that its controller has not looked at yet.
const notReported = "The EgressTarget has no status yet"

// ServiceFacts are what one pass found out about a Service of ours.
type ServiceFacts struct {
	// Generation is the Service's own, which API servers leave at 0 to this day.
	Generation int64
	// Grouped is whether the Service asks for a ProxyGroup.
	Grouped bool
	// Invalid says why the Service cannot be translated; empty where it can.
	Invalid string
	// Failed says why its EgressTarget could not be applied; empty where it was.
	Failed string
	// Target is the EgressTarget that was made for the Service, the last good one
	// where the Service is Invalid; nil for none.
	Target *v1alpha1.EgressTarget
}

// Service is the conditions of a Service: a projection of those of its
// EgressTarget, with the times of transition of those in previous that stay as
// they are. Their observedGeneration is the Service's, or the EgressTarget's
// where the Service has none.
func Service(facts ServiceFacts, previous []metav1.Condition, now time.Time) []metav1ac.ConditionApplyConfiguration {
	generation := facts.Generation
	if generation == 0 && facts.Target != nil {
		generation = facts.Target.Status.ObservedGeneration
	}
	conditions := []metav1.Condition{facts.proxyReady()}
	if facts.Grouped {
		conditions = []metav1.Condition{facts.valid(), facts.configured(), facts.egressReady()}
	}
	out := make([]metav1ac.ConditionApplyConfiguration, 0, len(conditions))
	for _, c := range conditions {
		applied := apply(c, generation, previous, now)
		if generation == 0 {
			// The API server does not store a zero, so that applying one would be a
			// change each time.
			applied.ObservedGeneration = nil
		}
		out = append(out, *applied)
	}
	return out
}

// of is a condition of the target, with status Unknown where it has none.
func (f ServiceFacts) of(name string) metav1.Condition {
	if f.Target != nil {
		if c := meta.FindStatusCondition(f.Target.Status.Conditions, name); c != nil {
			return *c
		}
	}
	return unknown(name, v1alpha1.ReasonPending, notReported)
}

func (f ServiceFacts) destination() string {
	return cmp.Or(f.Target.Spec.Destination.FQDN, f.Target.Spec.Destination.IP)
}

// needsPerson is which reasons of a target do not go away with time.
var needsPerson = map[string]bool{
	v1alpha1.ReasonServiceNameTaken:         true,
	v1alpha1.ReasonCredentialsMissing:       true,
	v1alpha1.ReasonInvalid:                  true,
	v1alpha1.ReasonAddressFamilyUnsupported: true,
	v1alpha1.ReasonProgrammingFailed:        true,
}

func (f ServiceFacts) proxyReady() metav1.Condition {
	const name = v1alpha1.ServiceProxyReady
	ready := f.of(v1alpha1.ConditionReady)
	switch {
	case f.Invalid != "":
		return condition(name, false, v1alpha1.ReasonProxyInvalid, f.Invalid)
	case f.Failed != "":
		return condition(name, false, v1alpha1.ReasonProxyFailed, f.Failed)
	case ready.Status == metav1.ConditionTrue:
		return condition(name, true, v1alpha1.ReasonProxyCreated, "Traffic to "+f.destination()+" is forwarded")
	case needsPerson[ready.Reason]:
		return condition(name, false, v1alpha1.ReasonProxyFailed, ready.Message)
	}
	return condition(name, false, v1alpha1.ReasonProxyPending, ready.Message)
}

func (f ServiceFacts) valid() metav1.Condition {
	const name = v1alpha1.ServiceEgressValid
	accepted := f.of(v1alpha1.ConditionAccepted)
	switch problem := cmp.Or(f.Invalid, f.Failed); {
	case problem != "":
		return condition(name, false, v1alpha1.ReasonEgressSvcInvalid, problem)
	case accepted.Status == metav1.ConditionTrue:
		return condition(name, true, v1alpha1.ReasonEgressSvcValid, "")
	case accepted.Status == metav1.ConditionUnknown, accepted.Reason == v1alpha1.ReasonProxyGroupNotFound:
		return unknown(name, v1alpha1.ReasonProxyGroupNotReady, accepted.Message)
	}
	return condition(name, false, v1alpha1.ReasonEgressSvcInvalid, accepted.Message)
}

func (f ServiceFacts) configured() metav1.Condition {
	const name = v1alpha1.ServiceEgressConfigured
	programmed := f.of(v1alpha1.ConditionProgrammed)
	switch problem := cmp.Or(f.Invalid, f.Failed); {
	case problem != "":
		return condition(name, false, v1alpha1.ReasonConfigurationFailed, problem)
	case programmed.Status == metav1.ConditionTrue:
		return condition(name, true, v1alpha1.ReasonConfigured, "")
	}
	return condition(name, false, v1alpha1.ReasonConfigurationFailed, programmed.Message)
}

// egressReady speaks of traffic alone: it flows on the last good EgressTarget
// while the Service is invalid.
func (f ServiceFacts) egressReady() metav1.Condition {
	const name = v1alpha1.ServiceEgressReady
	accepted, ready := f.of(v1alpha1.ConditionAccepted), f.of(v1alpha1.ConditionReady)
	var replicas, carrying int32
	if f.Target != nil {
		replicas, carrying = ptr.Deref(f.Target.Status.Replicas, 0), ptr.Deref(f.Target.Status.ReadyReplicas, 0)
	}
	message := fmt.Sprintf("%d out of %d replicas are ready to route traffic", carrying, replicas)
	switch {
	case ready.Status == metav1.ConditionTrue && carrying < replicas:
		return condition(name, true, v1alpha1.ReasonPartiallyReadyToRouteTraffic, message)
	case ready.Status == metav1.ConditionTrue:
		return condition(name, true, v1alpha1.ReasonReadyToRouteTraffic, message)
	case accepted.Status != metav1.ConditionTrue:
		return condition(name, false, v1alpha1.ReasonClusterResourcesNotReady, accepted.Message)
	case replicas == 0:
		return condition(name, false, v1alpha1.ReasonNoProxiesConfigured, message)
	}
	return condition(name, false, v1alpha1.ReasonNotReadyToRouteTraffic, message)
}
