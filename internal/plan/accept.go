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
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
	"github.com/tailnet-egress/egress-operator/internal/status"
)

// Translated is whether target was made from a user's Service, which then is its
// controller.
func Translated(target *v1alpha1.EgressTarget) bool {
	owner := metav1.GetControllerOf(target)
	return owner != nil && owner.Kind == "Service" && owner.APIVersion == "v1"
}

// BackingService is where the Service of target belongs: in the operator
// namespace for a translated target, else in the target's own.
func BackingService(target *v1alpha1.EgressTarget, operatorNamespace string) types.NamespacedName {
	if Translated(target) {
		return types.NamespacedName{Namespace: operatorNamespace, Name: names.Child(target.Namespace, target.Name)}
	}
	return types.NamespacedName{Namespace: target.Namespace, Name: cmp.Or(target.Spec.ServiceName, target.Name)}
}

// Registered is whether the device of a proxy can log in without a key.
func Registered(secret *corev1.Secret) bool {
	return secret != nil && len(secret.Data[proxyconfig.DeviceIDKey]) > 0 && len(secret.Data[proxyconfig.ProfileKey]) > 0
}

// accept says whether the spec can be honoured. It fills p.proxy.
func (p *pass) accept() status.Verdict {
	spec := p.Target.Spec
	var invalid error
	p.proxy, invalid = proxyTarget(p.Target)
	if spec.ProxyGroup != "" {
		return status.Verdict{Reason: v1alpha1.ReasonProxyGroupNotFound, Message: fmt.Sprintf(
			"spec.proxyGroup: ProxyGroup %q was not found: this version of the operator runs standalone proxies only; remove spec.proxyGroup to use one", spec.ProxyGroup)}
	}
	if spec.ProxyClass != "" {
		return status.Verdict{Reason: v1alpha1.ReasonProxyClassNotFound, Message: fmt.Sprintf(
			"spec.proxyClass: ProxyClass %q was not found: this version of the operator has none; remove spec.proxyClass to use the defaults", spec.ProxyClass)}
	}
	if invalid != nil {
		return status.Verdict{Reason: v1alpha1.ReasonInvalid, Message: invalid.Error()}
	}
	if holder := p.NameHolder; holder != nil && !p.owns(holder) {
		return status.Verdict{Reason: v1alpha1.ReasonServiceNameTaken, Message: fmt.Sprintf(
			"Service %q exists and %s: delete it, or set spec.serviceName to another name", holder.Name, whose(holder))}
	}
	if p.AuthKey == "" && !Registered(p.secret()) {
		return status.Verdict{Reason: v1alpha1.ReasonCredentialsMissing, Message: p.NoAuthKey}
	}
	verdict := status.Verdict{Reason: v1alpha1.ReasonAccepted}
	if len(spec.Tags) > 0 {
		// tailscaled's config file has no tags, and nothing here mints keys.
		verdict.Message = "spec.tags has no effect: a device has the tags of the auth key that it logs in with"
	}
	return verdict
}

// owns is whether a Service in the user's namespace was made for this target. One
// that lost its labels is still ours where we applied it.
func (p *pass) owns(service *corev1.Service) bool {
	if service.Labels[v1alpha1.LabelManaged] == "" {
		return slices.ContainsFunc(service.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
			return f.Manager == FieldOwner && f.Operation == metav1.ManagedFieldsOperationApply
		})
	}
	for key, value := range names.Selector(names.ParentEgressTarget, p.Target.Namespace, p.Target.Name) {
		if service.Labels[key] != value {
			return false
		}
	}
	return true
}

func whose(service *corev1.Service) string {
	if service.Labels[v1alpha1.LabelManaged] == "true" {
		return fmt.Sprintf("belongs to %s %q", service.Labels[v1alpha1.LabelParentType], service.Labels[v1alpha1.LabelParentResource])
	}
	return "was not made by this operator"
}

// proxyTarget is target as its proxy gets it. Its errors name the field, and only
// an object that was stored under an older schema can have them.
func proxyTarget(target *v1alpha1.EgressTarget) (proxyconfig.Target, error) {
	t := proxyconfig.Target{ID: target.Namespace + "/" + target.Name, AllPorts: len(target.Spec.Ports) == 0}
	t.Destination.FQDN = strings.ToLower(strings.TrimSuffix(target.Spec.Destination.FQDN, "."))
	if ip := target.Spec.Destination.IP; ip != "" {
		var err error
		if t.Destination.IP, err = netip.ParseAddr(ip); err != nil {
			return t, fmt.Errorf("spec.destination.ip: %q could not be parsed as a valid IP address", ip)
		}
		t.Destination.IP = t.Destination.IP.Unmap()
	}
	seen := map[string]bool{}
	for i, port := range target.Spec.Ports {
		if port.Name != "" && seen[port.Name] {
			return t, fmt.Errorf("spec.ports[%d].name: %q is the name of another port: port names must be unique", i, port.Name)
		}
		seen[port.Name] = true
		listen, to := port.Port, cmp.Or(port.TargetPort, port.Port)
		if listen < 1 || listen > 65535 || to < 1 || to > 65535 {
			return t, fmt.Errorf("spec.ports[%d]: %d to %d: a port is 1-65535", i, listen, to)
		}
		t.Listeners = append(t.Listeners, proxyconfig.Listener{
			Protocol: proxyconfig.Protocol(protocol(port)), Port: uint16(listen), TargetPort: uint16(to)})
	}
	t = t.Canonical()
	return t, validate(t)
}

// validate asks the proxy's own reader whether it would take t.
func validate(t proxyconfig.Target) error {
	data, err := proxyconfig.Config{Targets: []proxyconfig.Target{t}}.Encode()
	if err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	_, bad, err := proxyconfig.Decode(data)
	if err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	if len(bad) > 0 {
		return fmt.Errorf("spec: %w", bad[0].Err)
	}
	return nil
}

func protocol(port v1alpha1.TargetPort) corev1.Protocol {
	return cmp.Or(port.Protocol, corev1.ProtocolTCP)
}
