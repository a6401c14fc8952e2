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

// Condition types of an EgressTarget. The EgressTarget controller sets all of
// them.
const (
	// ConditionAccepted is True when the spec can be honoured: what it refers to
	// exists and allows it, and its names and ports are free.
	ConditionAccepted = "Accepted"
	// ConditionResolved is True when the proxies see at least one address for the
	// destination and a route to it.
	ConditionResolved = "Resolved"
	// ConditionProgrammed is True when every ready proxy has programmed this
	// generation.
	ConditionProgrammed = "Programmed"
	// ConditionReady is True when at least one proxy that clients are routed to
	// has programmed this generation with addresses.
	ConditionReady = "Ready"
)

// Reasons of ConditionAccepted.
const (
	// ReasonAccepted: the spec can be honoured.
	ReasonAccepted = "Accepted"
	// ReasonProxyGroupNotFound: spec.proxyGroup names no ProxyGroup.
	ReasonProxyGroupNotFound = "ProxyGroupNotFound"
	// ReasonProxyClassNotFound: spec.proxyClass names no ProxyClass.
	ReasonProxyClassNotFound = "ProxyClassNotFound"
	// ReasonServiceNameTaken: a Service of that name exists and is not ours.
	ReasonServiceNameTaken = "ServiceNameTaken"
	// ReasonCredentialsMissing: there is no key to log a new proxy in with.
	ReasonCredentialsMissing = "CredentialsMissing"
	// ReasonInvalid: the spec breaks a rule; only an object that was stored under
	// an older schema can have it.
	ReasonInvalid = "Invalid"
)

// Reasons of ConditionResolved. The first four but Resolved are what a proxy
// reports in its acknowledgement.
const (
	// ReasonResolved: there is an address and a route to it.
	ReasonResolved = "Resolved"
	// ReasonTargetNotFound: no device or Service of the tailnet has the name or
	// address.
	ReasonTargetNotFound = "TargetNotFound"
	// ReasonNoAddresses: the device exists but has no address.
	ReasonNoAddresses = "NoAddresses"
	// ReasonNoRouteToTarget: the address is not a device's and no subnet router
	// of the tailnet advertises a route to it.
	ReasonNoRouteToTarget = "NoRouteToTarget"
	// ReasonAddressFamilyUnsupported: the destination only has addresses of a
	// family that the proxy Pods cannot forward.
	ReasonAddressFamilyUnsupported = "AddressFamilyUnsupported"
	// ReasonNotReported: no proxy has reported yet.
	ReasonNotReported = "NotReported"
)

// Reasons of ConditionProgrammed.
const (
	// ReasonProgrammed: every ready proxy has programmed this generation.
	ReasonProgrammed = "Programmed"
	// ReasonPending: a proxy has yet to acknowledge this generation.
	ReasonPending = "Pending"
	// ReasonProgrammingFailed: a proxy could not program its kernel.
	ReasonProgrammingFailed = "ProgrammingFailed"
)

// Reasons of ConditionReady; where Accepted or Resolved is not True, Ready
// repeats its reason and message.
const (
	// ReasonReady: traffic flows to the destination.
	ReasonReady = "Ready"
	// ReasonNoReadyProxies: no proxy is up and connected to the tailnet.
	ReasonNoReadyProxies = "NoReadyProxies"
)

// Condition types on a user's Service, which are a projection of the conditions
// of its EgressTarget. The Service controller sets all of them.
const (
	// ServiceProxyReady (standalone) is True when the target is Ready.
	ServiceProxyReady = "TailscaleProxyReady"
	// ServiceEgressValid (high availability) is True when the Service could be
	// translated and its target is Accepted.
	ServiceEgressValid = "TailscaleEgressSvcValid"
	// ServiceEgressConfigured (high availability) is True when the target is
	// Programmed.
	ServiceEgressConfigured = "TailscaleEgressSvcConfigured"
	// ServiceEgressReady (high availability) is True when the target is Ready.
	ServiceEgressReady = "TailscaleEgressSvcReady"
)

// Reasons of ServiceProxyReady.
const (
	// ReasonProxyCreated: the proxy carries traffic.
	ReasonProxyCreated = "ProxyCreated"
	// ReasonProxyInvalid: the Service cannot be translated; the message says why.
	ReasonProxyInvalid = "ProxyInvalid"
	// ReasonProxyFailed: the target needs a person: its message says what.
	ReasonProxyFailed = "ProxyFailed"
	// ReasonProxyPending: time, or something that does not exist yet, will help.
	ReasonProxyPending = "ProxyPending"
)

// Reasons of the conditions of high availability Services.
const (
	// ReasonEgressSvcValid: the Service was translated and accepted.
	ReasonEgressSvcValid = "EgressSvcValid"
	// ReasonEgressSvcInvalid: the Service cannot be translated or honoured.
	ReasonEgressSvcInvalid = "EgressSvcInvalid"
	// ReasonProxyGroupNotReady: the ProxyGroup does not exist or is not ready.
	ReasonProxyGroupNotReady = "ProxyGroupNotReady"
	// ReasonConfigured: every ready proxy has programmed the target.
	ReasonConfigured = "Configured"
	// ReasonConfigurationFailed: not every ready proxy has programmed the target.
	ReasonConfigurationFailed = "ConfigurationFailed"
	// ReasonReadyToRouteTraffic: all replicas carry traffic.
	ReasonReadyToRouteTraffic = "ReadyToRouteTraffic"
	// ReasonPartiallyReadyToRouteTraffic: some replicas carry traffic.
	ReasonPartiallyReadyToRouteTraffic = "PartiallyReadyToRouteTraffic"
	// ReasonClusterResourcesNotReady: children of the target are missing.
	ReasonClusterResourcesNotReady = "ClusterResourcesNotReady"
	// ReasonNoProxiesConfigured: the ProxyGroup has no proxies.
	ReasonNoProxiesConfigured = "NoProxiesConfigured"
	// ReasonNotReadyToRouteTraffic: no replica carries traffic.
	ReasonNotReadyToRouteTraffic = "NotReadyToRouteTraffic"
)
