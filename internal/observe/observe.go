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

// Package observe is the only place that gets and lists: it reads all that a plan
// may look at into one value.
package observe

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/internal/plan"
	"github.com/tailnet-egress/egress-operator/internal/tailnetapi"
)

// Observer reads the cluster.
type Observer struct {
	// Targets reads EgressTargets; with the index ByLabels.
	Targets client.Reader
	// Children reads what the operator made; with the index ByParent on every kind
	// of ChildKinds.
	Children client.Reader
	// Live reads past every cache.
	Live        client.Reader
	Keys        tailnetapi.Keys
	DefaultTags []string
	Settings    plan.Settings
}

// ChildKinds are the kinds of which a target has children, and Pods.
func ChildKinds() []client.Object {
	return append(fleetKinds(), &corev1.Service{}, &discoveryv1.EndpointSlice{})
}

// fleetKinds are those that are in the operator namespace only.
func fleetKinds() []client.Object {
	return []client.Object{
		&appsv1.StatefulSet{}, &corev1.Pod{}, &corev1.Secret{}, &corev1.ConfigMap{},
		&corev1.ServiceAccount{}, &rbacv1.Role{}, &rbacv1.RoleBinding{},
	}
}

func childLists() []client.ObjectList {
	return append(fleetLists(), serviceLists()...)
}

func fleetLists() []client.ObjectList {
	return []client.ObjectList{
		&appsv1.StatefulSetList{}, &corev1.PodList{}, &corev1.SecretList{}, &corev1.ConfigMapList{},
		&corev1.ServiceAccountList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{},
	}
}

func serviceLists() []client.ObjectList {
	return []client.ObjectList{&corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}}
}

// Target reads what concerns one EgressTarget. The error is NotFound where there
// is no such target. Of one that is being deleted it reads nothing but itself: no
// key must be asked for, and nothing that fails may keep it.
func (o Observer) Target(ctx context.Context, key types.NamespacedName) (plan.Observed, error) {
	target := &v1alpha1.EgressTarget{}
	if err := o.Targets.Get(ctx, key, target); err != nil {
		return plan.Observed{}, fmt.Errorf("get EgressTarget: %w", err)
	}
	observed := plan.Observed{Target: target, Settings: o.Settings}
	if !target.DeletionTimestamp.IsZero() {
		return observed, nil
	}
	var err error
	if observed.Children, err = o.CachedChildren(ctx, key); err != nil {
		return plan.Observed{}, err
	}
	if observed.NameHolder, err = o.nameHolder(ctx, observed); err != nil {
		return plan.Observed{}, err
	}
	return observed, o.credentials(ctx, &observed)
}

// CachedChildren are the children of namespace/name, whether that exists or not.
func (o Observer) CachedChildren(ctx context.Context, key types.NamespacedName) ([]plan.Object, error) {
	parent := client.MatchingFields{ByParent: parentKey(key)}
	var out []plan.Object
	for _, list := range childLists() {
		if err := o.Children.List(ctx, list, parent); err != nil {
			return nil, fmt.Errorf("list children: %w", err)
		}
		out = appendItems(out, list)
	}
	return out, nil
}

// LiveChildren are the same, as the API server has them at this moment: what was
// just made, and has not reached a cache, is among them.
func (o Observer) LiveChildren(ctx context.Context, key types.NamespacedName) ([]plan.Object, error) {
	selector := client.MatchingLabels(names.Selector(names.ParentEgressTarget, key.Namespace, key.Name))
	var out []plan.Object
	read := func(namespace string, lists []client.ObjectList) error {
		for _, list := range lists {
			if err := o.Live.List(ctx, list, client.InNamespace(namespace), selector); err != nil {
				return fmt.Errorf("list children in namespace %q: %w", namespace, err)
			}
			out = appendItems(out, list)
		}
		return nil
	}
	err := read(o.Settings.OperatorNamespace, childLists())
	if err == nil && key.Namespace != o.Settings.OperatorNamespace {
		err = read(key.Namespace, serviceLists())
	}
	return out, err
}

// nameHolder looks for a Service that is in the way of the target's own, in the
// only namespace where others make Services: such a Service is in no cache.
func (o Observer) nameHolder(ctx context.Context, observed plan.Observed) (*corev1.Service, error) {
	if plan.Translated(observed.Target) {
		return nil, nil
	}
	wanted := plan.BackingService(observed.Target, o.Settings.OperatorNamespace)
	for _, c := range observed.Children {
		if service, ok := c.(*corev1.Service); ok && client.ObjectKeyFromObject(service) == wanted {
			return service, nil
		}
	}
	service := &corev1.Service{}
	err := o.Live.Get(ctx, wanted, service)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get Service %s: %w", wanted, err)
	}
	return service, nil
}

// credentials asks for a key where the target's device cannot log in without.
func (o Observer) credentials(ctx context.Context, observed *plan.Observed) error {
	target := observed.Target
	pod := names.Pod(names.Child(target.Namespace, target.Name), 0)
	for _, c := range observed.Children {
		if secret, ok := c.(*corev1.Secret); ok && secret.Name == pod && plan.Registered(secret) {
			return nil
		}
	}
	request := tailnetapi.KeyRequest{Hostname: plan.Hostname(target), Tags: o.DefaultTags}
	if len(target.Spec.Tags) > 0 {
		request.Tags = nil
		for _, tag := range target.Spec.Tags {
			request.Tags = append(request.Tags, string(tag))
		}
	}
	key, err := o.Keys.AuthKey(ctx, request)
	if missing, ok := errors.AsType[tailnetapi.NoCredentialsError](err); ok {
		observed.NoAuthKey = missing.Message
		return nil
	}
	if err != nil {
		return fmt.Errorf("get an auth key: %w", err)
	}
	observed.AuthKey = key
	return nil
}

func appendItems(out []plan.Object, list client.ObjectList) []plan.Object {
	// The callback cannot fail, and every item of our lists is an object.
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		if object, ok := item.(plan.Object); ok {
			out = append(out, object)
		}
		return nil
	})
	return out
}
