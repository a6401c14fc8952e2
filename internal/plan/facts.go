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

package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/internal/status"
)

// maxMessage is how much of a proxy's message is passed on, in bytes.
const maxMessage = 1024

func (p *pass) facts(verdict status.Verdict) status.Facts {
	facts := status.Facts{
		Generation:  p.Target.Generation,
		Destination: p.Target.Spec.Destination.FQDN + p.Target.Spec.Destination.IP,
		Accepted:    verdict,
		Address:     p.address(verdict),
		Replicas:    1,
	}
	if pod := p.livePod(); pod != nil {
		facts.Proxies = append(facts.Proxies, p.proxyFacts(pod))
	} else {
		facts.Missing = "Pod " + p.pod + " does not exist yet"
	}
	return facts
}

// address is the name that workloads dial: of a translated target that of the
// user's Service, which leads to the backing one.
func (p *pass) address(verdict status.Verdict) string {
	if verdict.Reason != v1alpha1.ReasonAccepted {
		return ""
	}
	if Translated(p.Target) {
		return names.ExternalName(p.Target.Name, p.Target.Namespace, p.Settings.ClusterDomain)
	}
	return names.ExternalName(p.service.Name, p.service.Namespace, p.Settings.ClusterDomain)
}

func (p *pass) proxyFacts(pod *corev1.Pod) status.Proxy {
	facts := status.Proxy{
		Pod: pod.Name, Ready: podReady(pod) && pod.DeletionTimestamp == nil, NotReady: whyNotReady(pod),
		Draining: pod.DeletionTimestamp != nil, Reported: p.reported(pod),
	}
	if !facts.Reported {
		return facts
	}
	facts.Connected, facts.Disconnected, facts.Draining = p.ack.Connected, cut(p.ack.Message), facts.Draining || p.ack.Draining
	target, ok := p.ack.Target(p.id())
	if !ok {
		return facts
	}
	facts.Current = target.Revision == p.proxy.Revision
	facts.Addresses, facts.Reason, facts.Message = target.Addresses, target.Reason, cut(target.Message)
	serving, terminating := p.serving(pod)
	facts.Published = serving && !terminating && slices.ContainsFunc(families, func(f discoveryv1.AddressType) bool { return p.routed(pod, f) })
	return facts
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// whyNotReady says what a person looks for first: deleted, not scheduled, or a
// container that cannot run. It has no counters or times, so that it stays the
// same while nothing changes.
func whyNotReady(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "it cannot be scheduled: " + cut(c.Message)
		}
	}
	for _, c := range append(slices.Clone(pod.Status.InitContainerStatuses), pod.Status.ContainerStatuses...) {
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			return "container " + c.Name + " waits: " + c.State.Waiting.Reason
		case c.State.Terminated != nil:
			return "container " + c.Name + " ended: " + c.State.Terminated.Reason
		}
	}
	return ""
}

func cut(s string) string {
	if len(s) > maxMessage {
		return s[:maxMessage]
	}
	return s
}
