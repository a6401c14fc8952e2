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

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// EgressTargetSpec says which host on a tailnet workloads want to reach, and
// how. A target without a proxyGroup is standalone: it gets a proxy Pod of its
// own.
//
// +kubebuilder:validation:XValidation:rule="!has(self.proxyGroup) || has(self.ports)",message="spec.ports is required with spec.proxyGroup: list at least one port, since the proxies of a group are shared"
// +kubebuilder:validation:XValidation:rule="!(has(self.proxyGroup) && has(self.proxyClass))",message="spec.proxyClass is for a standalone target: remove it, or set the class on the ProxyGroup"
// +kubebuilder:validation:XValidation:rule="!(has(self.proxyGroup) && has(self.hostname))",message="spec.hostname is for a standalone target: remove it, or set hostnamePrefix on the ProxyGroup"
// +kubebuilder:validation:XValidation:rule="!(has(self.proxyGroup) && has(self.tags))",message="spec.tags is for a standalone target: remove it, or set the tags on the ProxyGroup"
// +kubebuilder:validation:XValidation:rule="has(self.proxyGroup) || !has(self.ports) || self.ports.all(p, !(p.port == 9002 && p.protocol == 'TCP') && !(p.port == 41641 && p.protocol == 'UDP'))",message="spec.ports: 9002/TCP and 41641/UDP are used by a standalone proxy itself; choose another port and set targetPort"
type EgressTargetSpec struct {
	// destination is the host on the tailnet; exactly one of its fields is set.
	// +required
	Destination Destination `json:"destination,omitzero"`

	// ports that workloads dial. Required with proxyGroup. Absent on a standalone
	// target, every port and protocol is forwarded.
	// +optional
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=512
	// +kubebuilder:validation:XValidation:rule="self.size() == 1 || self.all(p, has(p.name))",message="every port needs a name when there are several"
	// +kubebuilder:validation:XValidation:rule="self.size() > 256 || self.all(p, !has(p.name) || self.exists_one(q, has(q.name) && q.name == p.name))",message="port names must be unique"
	Ports []TargetPort `json:"ports,omitempty"`

	// proxyGroup names the ProxyGroup whose proxies carry the traffic (high
	// availability). Absent means standalone.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",messageExpression="'\"' + self + '\" is not the name of a ProxyGroup: use lower-case letters, digits and dashes, at most 63 characters'"
	ProxyGroup string `json:"proxyGroup,omitempty"`

	// proxyClass names the ProxyClass of a standalone proxy.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",messageExpression="'\"' + self + '\" is not the name of a ProxyClass: use lower-case letters, digits, dashes and dots'"
	ProxyClass string `json:"proxyClass,omitempty"`

	// hostname is the device name of a standalone proxy on the tailnet, a DNS
	// label. Default: <namespace>-<name>.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",messageExpression="'\"' + self + '\" is not a valid hostname: use lower-case letters, digits and dashes, beginning and ending with a letter or digit'"
	Hostname string `json:"hostname,omitempty"`

	// tags are the ACL tags of a standalone proxy. They have no effect where it
	// logs in with an auth key, which has tags of its own; Accepted then says so.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Tags []Tag `json:"tags,omitempty"`

	// serviceName is the Service that workloads dial, a DNS label. Default:
	// metadata.name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1035Label().validate(self).hasValue()",messageExpression="'\"' + self + '\" is not a Service name: use lower-case letters, digits and dashes, beginning with a letter'"
	ServiceName string `json:"serviceName,omitempty"`
}

// Tag is an ACL tag: "tag:", a letter, then letters, digits and dashes.
//
// +kubebuilder:validation:MinLength=5
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.matches('^tag:[a-zA-Z][a-zA-Z0-9-]*$')",messageExpression="'invalid tag \"' + self + '\": a tag is tag: and a letter, then letters, digits and dashes'"
type Tag string

// Destination is a host on the tailnet, or behind one of its subnet routers.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="has(self.fqdn) != has(self.ip)",message="spec.destination must have exactly one of fqdn and ip"
type Destination struct {
	// fqdn is the MagicDNS name of a device or a Tailscale Service: at least two
	// labels in any domain; case is ignored and one trailing dot is allowed.
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?[.])+[a-zA-Z]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?[.]?$') && (self.size() < 254 || self.endsWith('.'))",messageExpression="'\"' + self + '\" does not appear to be a valid MagicDNS name: expected two or more labels of letters, digits and dashes, such as db.tail1234.ts.net'"
	FQDN string `json:"fqdn,omitempty"`

	// ip is an IPv4 or IPv6 address: of a device, or of a host behind a subnet
	// router. Without a zone; not loopback, multicast, unspecified or link-local.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",messageExpression="'\"' + self + '\" could not be parsed as a valid IP address: expected one such as 100.64.0.9 or fd7a:115c:a1e0::9'"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast()",messageExpression="'\"' + self + '\" cannot be a target: loopback, multicast, unspecified and link-local addresses are not on a tailnet'"
	IP string `json:"ip,omitempty"`
}

// TargetPort is one port that workloads dial and where it leads.
type TargetPort struct {
	// name of the port on the Service; needed when there are several.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",messageExpression="'\"' + self + '\" is not a port name: use lower-case letters, digits and dashes'"
	Name string `json:"name,omitempty"`

	// port that workloads dial, 1-65535.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// targetPort is the port on the target, 1-65535. Default: port.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	TargetPort int32 `json:"targetPort,omitempty"`

	// protocol is TCP or UDP.
	// +optional
	// +default="TCP"
	// +kubebuilder:validation:Enum=TCP;UDP
	Protocol corev1.Protocol `json:"protocol,omitempty"`
}

// EgressTargetStatus is what the operator last observed.
//
// +kubebuilder:validation:MinProperties=1
type EgressTargetStatus struct {
	// conditions are Accepted, Resolved, Programmed and Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status speaks of.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// address is the in-cluster DNS name that workloads dial.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Address string `json:"address,omitempty"`

	// destinationIPs are the addresses that the proxies forward to.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=45
	DestinationIPs []string `json:"destinationIPs,omitempty"`

	// replicas is how many proxies should carry this target.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`

	// readyReplicas is how many proxies carry it now: they have acknowledged this
	// target with at least one address and clients are routed to them.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`

	// ready is readyReplicas and replicas as a person reads them, such as "2/3".
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=23
	Ready string `json:"ready,omitempty"`
}

// EgressTarget gives workloads a Service name for one host on a tailnet.
//
// +genclient
// +kubebuilder:ac:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=egt,categories=tailscale
// +kubebuilder:printcolumn:name="Destination",type=string,JSONPath=`.spec.destination.*`
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.proxyGroup`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.address`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="IPs",type=string,JSONPath=`.status.destinationIPs`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="has(self.spec.serviceName) || !format.dns1035Label().validate(self.metadata.name).hasValue()",messageExpression="'metadata.name: \"' + self.metadata.name + '\" cannot name a Service: use a DNS label of at most 63 characters, or set spec.serviceName'"
type EgressTarget struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is a standard object metadata
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the host on the tailnet and the ports that lead to it.
	// +required
	Spec EgressTargetSpec `json:"spec,omitzero"`

	// status is what the operator last observed.
	// +optional
	Status EgressTargetStatus `json:"status,omitzero"`
}

// +kubebuilder:object:root=true

// EgressTargetList contains a list of EgressTarget
type EgressTargetList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is a standard list metadata
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []EgressTarget `json:"items"`
}

func init() {
	SchemeBuilder.Register(func(s *runtime.Scheme) error {
		s.AddKnownTypes(SchemeGroupVersion, &EgressTarget{}, &EgressTargetList{})
		return nil
	})
}
