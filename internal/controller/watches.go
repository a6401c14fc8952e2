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

package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/observe"
)

const (
	// workers of one controller: passes are short, and one that waits for the API
	// server must not hold up the others.
	workers = 8
	// Failed passes are tried again after minBackoff, twice that, and so on.
	minBackoff = 100 * time.Millisecond
	maxBackoff = time.Minute
)

// NewChildren is a view of what the operator made, and of nothing else: its caches
// hold objects with the label tailscale.com/managed, and but for Services and
// EndpointSlices those of the operator namespace alone.
func NewChildren(mgr ctrl.Manager, operatorNamespace string) (cluster.Cluster, error) {
	managed := labels.SelectorFromSet(labels.Set{v1alpha1.LabelManaged: "true"})
	everywhere := cache.ByObject{Namespaces: map[string]cache.Config{cache.AllNamespaces: {LabelSelector: managed}}}
	children, err := cluster.New(mgr.GetConfig(), func(o *cluster.Options) {
		o.Scheme = mgr.GetScheme()
		o.Cache = cache.Options{
			DefaultLabelSelector: managed,
			DefaultNamespaces:    map[string]cache.Config{operatorNamespace: {}},
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Service{}:            everywhere,
				&discoveryv1.EndpointSlice{}: everywhere,
				// Nothing of ours is applied to a Pod.
				&corev1.Pod{}: {Transform: cache.TransformStripManagedFields()},
			},
		}
	})
	if err != nil {
		return nil, fmt.Errorf("make the cache of children: %w", err)
	}
	if err := mgr.Add(children); err != nil {
		return nil, fmt.Errorf("add the cache of children: %w", err)
	}
	return children, nil
}

// ManagerCache restricts the manager's own cache: of Secrets it holds the one with
// the credentials.
func ManagerCache(credentials types.NamespacedName) cache.Options {
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&corev1.Secret{}: {Namespaces: map[string]cache.Config{credentials.Namespace: {
			FieldSelector: fields.OneTermEqualSelector("metadata.name", credentials.Name)}}},
	}}
}

// SetupWithManager adds the controller to mgr. It looks at a target again when
// that, a child of it or the credentials change.
func (r *EgressTargetReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, children cluster.Cluster) error {
	if err := observe.IndexTargets(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := observe.IndexChildren(ctx, children.GetFieldIndexer()); err != nil {
		return err
	}
	builder := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.EgressTarget{}).
		Named("egresstarget").
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minBackoff, maxBackoff),
		}).
		WatchesRawSource(source.Kind[client.Object](mgr.GetCache(), &corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.allTargets)))
	for _, kind := range observe.ChildKinds() {
		builder.WatchesRawSource(source.Kind(children.GetCache(), kind, handler.EnqueueRequestsFromMapFunc(r.parentOf)))
	}
	if err := builder.Complete(r); err != nil {
		return fmt.Errorf("set up the EgressTarget controller: %w", err)
	}
	return registerMetrics(mgr.GetCache())
}

// parentOf maps a child to the target that it was made for.
func (r *EgressTargetReconciler) parentOf(ctx context.Context, child client.Object) []reconcile.Request {
	key, ok, err := r.Observer.Parent(ctx, child)
	if err != nil {
		logf.FromContext(ctx).Error(err, "Failed to map a child to its EgressTarget")
	}
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: key}}
}

// allTargets maps the credentials to every target: any of them may wait for a key.
func (r *EgressTargetReconciler) allTargets(ctx context.Context, _ client.Object) []reconcile.Request {
	var targets v1alpha1.EgressTargetList
	if err := r.Observer.Targets.List(ctx, &targets); err != nil {
		logf.FromContext(ctx).Error(err, "Failed to list EgressTargets")
		return nil
	}
	out := make([]reconcile.Request, 0, len(targets.Items))
	for i := range targets.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&targets.Items[i])})
	}
	return out
}
