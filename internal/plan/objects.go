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
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"

	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

// fleet is the objects of a standalone proxy, all in the operator namespace.
func (p *pass) fleet() []Child {
	ns := p.Settings.OperatorNamespace
	return []Child{
		child[*corev1.ServiceAccount](p, corev1ac.ServiceAccount(p.child, ns).WithLabels(p.labels), ns, p.child),
		child[*rbacv1.Role](p, p.role(), ns, p.child),
		child[*rbacv1.RoleBinding](p, p.roleBinding(), ns, p.child),
		child[*corev1.Secret](p, p.proxySecret(), ns, p.pod),
		// The operator makes the acknowledgement's object so that the proxy needs no
		// right to create any; what is in it is the proxy's.
		child[*corev1.ConfigMap](p, corev1ac.ConfigMap(p.ackName, ns).WithLabels(p.labels), ns, p.ackName),
		child[*appsv1.StatefulSet](p, p.statefulSet(), ns, p.child),
	}
}

// role lets the proxy reach its own two objects. A watch of one object by name
// needs list and watch of that name.
func (p *pass) role() *rbacv1ac.RoleApplyConfiguration {
	return rbacv1ac.Role(p.child, p.Settings.OperatorNamespace).WithLabels(p.labels).WithRules(
		rbacv1ac.PolicyRule().WithAPIGroups("").WithResources("secrets").WithResourceNames(p.pod).
			WithVerbs("get", "list", "watch", "update", "patch"),
		rbacv1ac.PolicyRule().WithAPIGroups("").WithResources("configmaps").WithResourceNames(p.ackName).
			WithVerbs("get", "list", "watch", "patch"),
	)
}

func (p *pass) roleBinding() *rbacv1ac.RoleBindingApplyConfiguration {
	return rbacv1ac.RoleBinding(p.child, p.Settings.OperatorNamespace).WithLabels(p.labels).
		WithRoleRef(rbacv1ac.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("Role").WithName(p.child)).
		WithSubjects(rbacv1ac.Subject().WithKind(rbacv1.ServiceAccountKind).WithName(p.child).WithNamespace(p.Settings.OperatorNamespace))
}

// proxySecret holds both configs; tailscaled keeps its state beside them.
func (p *pass) proxySecret() *corev1ac.SecretApplyConfiguration {
	config, replaces := p.config()
	secret := corev1ac.Secret(p.pod, p.Settings.OperatorNamespace).WithLabels(p.labels).WithType(corev1.SecretTypeOpaque).
		WithData(map[string][]byte{proxyconfig.ConfigKey: config, proxyconfig.TailscaledKey: p.tailscaled()})
	if replaces {
		// Two different configs must never get the same generation, so a new one is
		// only written over the one that it was computed from.
		secret.WithResourceVersion(p.secret().ResourceVersion)
	}
	return secret
}

// teardownRank orders kinds for deletion.
func teardownRank(o Object) int {
	switch o.(type) {
	case *appsv1.StatefulSet:
		return 0
	case *discoveryv1.EndpointSlice:
		return 1
	case *corev1.Service:
		return 2
	case *corev1.Secret, *corev1.ConfigMap:
		return 3
	}
	return 4
}
