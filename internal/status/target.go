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

// Package status turns the facts of one pass into conditions. It is pure, and it
// never reads a condition back as memory: of the previous ones it takes the
// times of transition alone.
package status

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	v1alpha1ac "github.com/tailnet-egress/egress-operator/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

// Outcome is what a pass led to, and with it what the controller does next.
type Outcome int

const (
	// Done: nothing is left to do until something changes.
	Done Outcome = iota
	// Waiting: time helps, and what is waited for is watched.
	Waiting
	// Polling: what is waited for cannot be watched, so it is looked at again.
	Polling
	// Stalled: a person must act; trying again changes nothing.
	Stalled
	// Failed: the API server refused or failed; trying again may help.
	Failed
)

func (o Outcome) String() string {
	return [...]string{"Done", "Waiting", "Polling", "Stalled", "Failed"}[o]
}

// Verdict is a reason of a condition and its sentence.
type Verdict struct {
	Reason  string
	Message string
}

// Facts are what one pass found out about a target.
type Facts struct {
	Generation int64
	// Destination is the name or address that was asked for.
	Destination string
	// Accepted has the reason Accepted where the spec can be honoured.
	Accepted Verdict
	// Address is the in-cluster DNS name; empty where there is none yet.
	Address string
	// Replicas is how many proxies should carry the target.
	Replicas int32
	// Proxies that exist.
	Proxies []Proxy
	// Missing says which proxy does not exist yet, where one does not.
	Missing string
	// WriteError is why a child could not be written; empty for none.
	WriteError string
}

// Written is f with what came of writing: where the objects that clients find the
// proxies by could not be written, clients are not routed to them.
func (f Facts) Written(routed bool, err string) Facts {
	f.WriteError = err
	f.Proxies = slices.Clone(f.Proxies)
	for i := range f.Proxies {
		f.Proxies[i].Published = f.Proxies[i].Published && routed
	}
	return f
}

// Proxy is one Pod and what it acknowledged.
type Proxy struct {
	Pod string
	// Ready is whether the Pod is Ready and not being deleted.
	Ready bool
	// NotReady says why the Pod is not Ready.
	NotReady string
	// Reported is whether the acknowledgement is of this very Pod.
	Reported  bool
	Connected bool
	// Disconnected says why it is not connected.
	Disconnected string
	Draining     bool
	// Current is whether it has programmed the target as it is now.
	Current   bool
	Addresses []netip.Addr
	Reason    proxyconfig.Reason
	Message   string
	// Published is whether clients are routed to it.
	Published bool
}

func (p Proxy) up() bool { return p.Ready && p.Reported && p.Connected && !p.Draining }

func (p Proxy) carries() bool { return p.up() && p.Current && p.Published && len(p.Addresses) > 0 }

// Target is the status of an EgressTarget: facts, with the times of transition
// of the conditions in previous that stay as they are.
func Target(facts Facts, previous []metav1.Condition, now time.Time) (*v1alpha1ac.EgressTargetStatusApplyConfiguration, Outcome) {
	carrying := int32(0)
	var addresses []netip.Addr
	for _, p := range facts.Proxies {
		if p.carries() {
			carrying++
		}
		if p.Reported && p.Current {
			addresses = append(addresses, p.Addresses...)
		}
	}
	conditions := facts.conditions(carrying)
	status := v1alpha1ac.EgressTargetStatus().WithObservedGeneration(facts.Generation).
		WithReplicas(facts.Replicas).WithReadyReplicas(carrying).WithReady(fmt.Sprintf("%d/%d", carrying, facts.Replicas))
	if facts.Address != "" {
		status.WithAddress(facts.Address)
	}
	status.WithDestinationIPs(texts(addresses)...)
	for _, c := range conditions {
		status.WithConditions(apply(c, facts.Generation, previous, now))
	}
	return status, facts.outcome(conditions)
}

func (f Facts) conditions(carrying int32) []metav1.Condition {
	accepted := f.accepted()
	resolved := f.resolved()
	programmed := f.programmed()
	return []metav1.Condition{accepted, resolved, programmed, f.ready(carrying, accepted, resolved, programmed)}
}

func (f Facts) accepted() metav1.Condition {
	return condition(v1alpha1.ConditionAccepted, f.Accepted.Reason == v1alpha1.ReasonAccepted, f.Accepted.Reason, f.Accepted.Message)
}

// resolved is Unknown until a proxy has said something about this generation.
func (f Facts) resolved() metav1.Condition {
	unresolved := unknown(v1alpha1.ConditionResolved, v1alpha1.ReasonNotReported, "No proxy has reported on "+f.Destination+" yet")
	for _, p := range f.Proxies {
		switch {
		case !p.Reported || !p.Current:
		case len(p.Addresses) > 0:
			return condition(v1alpha1.ConditionResolved, true, v1alpha1.ReasonResolved, f.resolution(p.Addresses))
		case p.Connected && resolution[p.Reason]:
			unresolved = condition(v1alpha1.ConditionResolved, false, string(p.Reason), p.Message)
		}
	}
	return unresolved
}

func (f Facts) resolution(addresses []netip.Addr) string {
	if list := strings.Join(texts(addresses), ", "); list != f.Destination {
		return f.Destination + " is " + list
	}
	return ""
}

// resolution is which reasons of a proxy speak of the destination; the others
// speak of programming.
var resolution = map[proxyconfig.Reason]bool{
	proxyconfig.TargetNotFound: true, proxyconfig.NoAddresses: true,
	proxyconfig.NoRouteToTarget: true, proxyconfig.AddressFamilyUnsupported: true,
}

func (f Facts) programmed() metav1.Condition {
	if f.WriteError != "" {
		return condition(v1alpha1.ConditionProgrammed, false, v1alpha1.ReasonProgrammingFailed, f.WriteError)
	}
	pending, reported := "", 0
	for _, p := range f.Proxies {
		switch {
		case p.Reported && p.Current && (p.Reason == proxyconfig.ProgrammingFailed || p.Reason == proxyconfig.InvalidTarget):
			return condition(v1alpha1.ConditionProgrammed, false, v1alpha1.ReasonProgrammingFailed, "Pod "+p.Pod+": "+p.Message)
		case p.Reported && p.Current:
			reported++
		case p.Ready || pending == "":
			pending = "Pod " + p.Pod + " has not programmed this generation yet"
		}
	}
	if reported > 0 && !slices.ContainsFunc(f.Proxies, func(p Proxy) bool { return p.up() && !p.Current }) {
		return condition(v1alpha1.ConditionProgrammed, true, v1alpha1.ReasonProgrammed, "")
	}
	if pending == "" {
		pending = cmp.Or(f.Missing, "There is no proxy yet")
	}
	return condition(v1alpha1.ConditionProgrammed, false, v1alpha1.ReasonPending, pending)
}

// ready is True where at least one proxy carries the target, else it says the
// first thing that is in the way.
func (f Facts) ready(carrying int32, accepted, resolved, programmed metav1.Condition) metav1.Condition {
	const name = v1alpha1.ConditionReady
	switch {
	case accepted.Status != metav1.ConditionTrue:
		return condition(name, false, accepted.Reason, accepted.Message)
	case carrying > 0:
		return condition(name, true, v1alpha1.ReasonReady, "")
	case resolved.Status == metav1.ConditionFalse:
		return condition(name, false, resolved.Reason, resolved.Message)
	case !slices.ContainsFunc(f.Proxies, Proxy.up):
		return condition(name, false, v1alpha1.ReasonNoReadyProxies, f.whyNoProxies())
	case programmed.Status != metav1.ConditionTrue:
		return condition(name, false, programmed.Reason, programmed.Message)
	case resolved.Status != metav1.ConditionTrue:
		return condition(name, false, resolved.Reason, resolved.Message)
	}
	return condition(name, false, v1alpha1.ReasonPending, "Clients are not routed to the proxy yet")
}

func (f Facts) whyNoProxies() string {
	if f.WriteError != "" {
		return f.WriteError
	}
	for _, p := range f.Proxies {
		pod := "Pod " + p.Pod
		switch {
		case p.Draining:
			return pod + " is draining"
		case p.Reported && !p.Connected && p.Disconnected != "":
			return pod + " is not connected to the tailnet: " + p.Disconnected
		case p.Reported && !p.Connected:
			return pod + " is not connected to the tailnet"
		case !p.Ready:
			return pod + " is not ready: " + cmp.Or(p.NotReady, "its readiness probe fails")
		case !p.Reported:
			return pod + " has not reported yet"
		}
	}
	return cmp.Or(f.Missing, "There is no proxy yet")
}

// outcome is decided by reason, in this one place.
func (f Facts) outcome(conditions []metav1.Condition) Outcome {
	switch f.Accepted.Reason {
	case v1alpha1.ReasonAccepted:
	case v1alpha1.ReasonServiceNameTaken:
		return Polling
	default:
		return Stalled
	}
	if f.WriteError != "" {
		return Failed
	}
	if meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReady) && meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionProgrammed) {
		return Done
	}
	return Waiting
}

func condition(name string, isTrue bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if isTrue {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: name, Status: status, Reason: reason, Message: message}
}

func unknown(name, reason, message string) metav1.Condition {
	return metav1.Condition{Type: name, Status: metav1.ConditionUnknown, Reason: reason, Message: message}
}

// maxMessage is the longest message of a condition that API servers store, in
// bytes.
const maxMessage = 32 * 1024

// Cut is text in at most limit bytes, with … where something is left out.
func Cut(text string, limit int) string {
	const mark = "…"
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(mark)], "") + mark
}

// apply is c with the time at which its status last changed.
func apply(c metav1.Condition, generation int64, previous []metav1.Condition, now time.Time) *metav1ac.ConditionApplyConfiguration {
	since := metav1.NewTime(now.Truncate(time.Second))
	if old := meta.FindStatusCondition(previous, c.Type); old != nil && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
		since = old.LastTransitionTime
	}
	return metav1ac.Condition().WithType(c.Type).WithStatus(c.Status).WithObservedGeneration(generation).
		WithLastTransitionTime(since).WithReason(c.Reason).WithMessage(Cut(c.Message, maxMessage))
}

// texts is addresses without repetition, in order.
func texts(addresses []netip.Addr) []string {
	addresses = slices.Clone(addresses)
	slices.SortFunc(addresses, netip.Addr.Compare)
	var out []string
	for _, a := range slices.Compact(addresses) {
		out = append(out, a.String())
	}
	return out
}
