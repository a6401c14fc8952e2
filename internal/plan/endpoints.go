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
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
)

// sliceManager is who manages our EndpointSlices: not Kubernetes' own controller.
const sliceManager = "tailscale.com"

var families = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}

var familyNames = map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "ipv4", discoveryv1.AddressTypeIPv6: "ipv6"}

// backingService is headless and has no selector: its name resolves to the
// addresses that our EndpointSlices list.
func (p *pass) backingService() Child {
	spec := corev1ac.ServiceSpec().WithType(corev1.ServiceTypeClusterIP).WithClusterIP(corev1.ClusterIPNone).
		WithIPFamilyPolicy(corev1.IPFamilyPolicyPreferDualStack)
	for _, port := range p.Target.Spec.Ports {
		// Clients of a headless Service dial the Pod itself.
		applied := corev1ac.ServicePort().WithPort(port.Port).WithProtocol(protocol(port)).WithTargetPort(intstr.FromInt32(port.Port))
		if port.Name != "" {
			// The API server does not store an empty name.
			applied.WithName(port.Name)
		}
		spec.WithPorts(applied)
	}
	out := child[*corev1.Service](p, corev1ac.Service(p.service.Name, p.service.Namespace).WithLabels(p.labels).WithSpec(spec),
		p.service.Namespace, p.service.Name)
	out.Routes = true
	if out.Live == nil && p.NameHolder == nil && p.service.Namespace != p.Settings.OperatorNamespace {
		out.Claim = &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.service.Namespace, Name: p.service.Name, Labels: p.labels},
			Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone},
		}
	}
	return out
}

// slices are the EndpointSlices of a Service, one per family of the Pod's
// addresses; while there is no Pod, those that there are stay, empty.
func (p *pass) slices(service types.NamespacedName, ports []v1alpha1.TargetPort) []Child {
	var out []Child
	pod := p.livePod()
	for _, family := range families {
		name := names.Slice(service.Name, familyNames[family])
		_, exists := find[*discoveryv1.EndpointSlice](p.Children, service.Namespace, name)
		addresses := podIPs(pod, family)
		if len(addresses) == 0 && (!exists || len(podIPs(pod, "")) > 0) {
			continue
		}
		labels := maps.Clone(p.labels)
		labels[discoveryv1.LabelServiceName] = service.Name
		labels[discoveryv1.LabelManagedBy] = sliceManager
		slice := discoveryv1ac.EndpointSlice(name, service.Namespace).WithLabels(labels).WithAddressType(family)
		if endpoint := p.endpoint(pod, family); endpoint != nil {
			slice.WithEndpoints(endpoint)
		}
		for _, port := range ports {
			slice.WithPorts(discoveryv1ac.EndpointPort().WithName(port.Name).WithPort(port.Port).WithProtocol(protocol(port)))
		}
		wanted := child[*discoveryv1.EndpointSlice](p, slice, service.Namespace, name)
		wanted.Routes = true
		out = append(out, wanted)
	}
	return out
}

// endpoint routes clients to the Pod in one family; nil where they must not be.
// Also a target that is not resolved is routed to: the proxy refuses its clients
// at once, where a name without addresses would leave them without an answer.
func (p *pass) endpoint(pod *corev1.Pod, family discoveryv1.AddressType) *discoveryv1ac.EndpointApplyConfiguration {
	if !p.routed(pod, family) {
		return nil
	}
	ready, terminating := p.serving(pod)
	endpoint := discoveryv1ac.Endpoint().WithAddresses(podIPs(pod, family)...).
		WithConditions(discoveryv1ac.EndpointConditions().WithReady(ready && !terminating).WithServing(ready).WithTerminating(terminating)).
		WithTargetRef(corev1ac.ObjectReference().WithKind("Pod").WithNamespace(pod.Namespace).WithName(pod.Name).WithUID(pod.UID))
	if pod.Spec.NodeName != "" {
		endpoint.WithNodeName(pod.Spec.NodeName)
	}
	return endpoint
}

// routed is whether the Pod has acknowledged the target, and forwards or refuses
// this family. Where it has addresses in use, only their families are forwarded.
func (p *pass) routed(pod *corev1.Pod, family discoveryv1.AddressType) bool {
	if pod == nil || !p.reported(pod) || len(podIPs(pod, family)) == 0 {
		return false
	}
	target, ok := p.ack.Target(p.id())
	return ok && (len(target.Addresses) == 0 ||
		slices.ContainsFunc(target.Addresses, func(a netip.Addr) bool { return familyOf(a) == family }))
}

func (p *pass) serving(pod *corev1.Pod) (serving, terminating bool) {
	return podReady(pod) && p.ack.Connected, pod.DeletionTimestamp != nil || p.ack.Draining
}

func (p *pass) livePod() *corev1.Pod {
	pod, ok := find[*corev1.Pod](p.Children, p.Settings.OperatorNamespace, p.pod)
	if !ok {
		return nil
	}
	return pod
}

// reported is whether the acknowledgement is of this very Pod.
func (p *pass) reported(pod *corev1.Pod) bool {
	return p.ack != nil && p.ack.PodUID != "" && p.ack.PodUID == string(pod.UID)
}

func (p *pass) id() string { return p.Target.Namespace + "/" + p.Target.Name }

// podIPs are the Pod's addresses of one family, of both where family is empty.
func podIPs(pod *corev1.Pod, family discoveryv1.AddressType) []string {
	if pod == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	var out []string
	for _, ip := range pod.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil && (family == "" || familyOf(addr) == family) {
			out = append(out, addr.String())
		}
	}
	return out
}

func familyOf(addr netip.Addr) discoveryv1.AddressType {
	if addr.Unmap().Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// targetPorts are the ports of a Service of ours, as a target lists them.
func targetPorts(service *corev1.Service) []v1alpha1.TargetPort {
	var out []v1alpha1.TargetPort
	for _, p := range service.Spec.Ports {
		out = append(out, v1alpha1.TargetPort{Name: p.Name, Port: p.Port, Protocol: p.Protocol})
	}
	return out
}
