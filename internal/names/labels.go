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

package names

import "maps"

// Parent types, the values of the label tailscale.com/parent-resource-type.
const (
	ParentEgressTarget = "egresstarget"
	ParentProxyGroup   = "proxygroup"
)

// Selector is the labels by which everything made for one parent is found again.
func Selector(parentType, namespace, name string) map[string]string {
	return map[string]string{
		"tailscale.com/managed":              "true",
		"tailscale.com/parent-resource":      LabelValue(name),
		"tailscale.com/parent-resource-ns":   namespace,
		"tailscale.com/parent-resource-type": parentType,
	}
}

// Labels is Selector and the labels that tools show: what component it is and
// who manages it.
func Labels(parentType, namespace, name, component string) map[string]string {
	labels := maps.Clone(Selector(parentType, namespace, name))
	labels["app.kubernetes.io/name"] = "egress-proxy"
	labels["app.kubernetes.io/component"] = component
	labels["app.kubernetes.io/managed-by"] = "egress-operator"
	return labels
}
