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

// Annotations on a user's Service.
const (
	// AnnotationTailnetFQDN is the MagicDNS name of the target.
	AnnotationTailnetFQDN = "tailscale.com/tailnet-fqdn"
	// AnnotationTailnetTargetIP is the IP address of the target.
	AnnotationTailnetTargetIP = "tailscale.com/tailnet-target-ip"
	// AnnotationTailnetIP is another documented spelling of
	// AnnotationTailnetTargetIP.
	AnnotationTailnetIP = "tailscale.com/tailnet-ip"
	// AnnotationDeprecatedTargetIP is the deprecated spelling of
	// AnnotationTailnetTargetIP.
	AnnotationDeprecatedTargetIP = "tailscale.com/ts-tailnet-target-ip"
	// AnnotationProxyGroup names the ProxyGroup to use.
	AnnotationProxyGroup = "tailscale.com/proxy-group"
	// AnnotationProxyClass names the ProxyClass of a standalone proxy; also
	// accepted as a label, which wins.
	AnnotationProxyClass = "tailscale.com/proxy-class"
	// AnnotationHostname is the device name of a standalone proxy.
	AnnotationHostname = "tailscale.com/hostname"
	// AnnotationTags are the comma-separated ACL tags of a standalone proxy.
	AnnotationTags = "tailscale.com/tags"
)

// Labels on every generated object.
const (
	// LabelManaged is "true" on everything the operator made.
	LabelManaged = "tailscale.com/managed"
	// LabelParentResource is the name of the object it was made for.
	LabelParentResource = "tailscale.com/parent-resource"
	// LabelParentNamespace is that object's namespace.
	LabelParentNamespace = "tailscale.com/parent-resource-ns"
	// LabelParentType is that object's kind in lower case.
	LabelParentType = "tailscale.com/parent-resource-type"
	// LabelProxyGroup is the ProxyGroup, where one applies.
	LabelProxyGroup = "tailscale.com/proxy-group"
)

// Finalizer is set where something outside the object's namespace must be
// cleaned.
const Finalizer = "tailscale.com/finalizer"

// Ports of a proxy Pod that no standalone target can have.
const (
	// ProxyHealthPort (TCP) serves health and metrics.
	ProxyHealthPort = 9002
	// ProxyTailscaledPort (UDP) is where tailscaled talks to its peers.
	ProxyTailscaledPort = 41641
)
