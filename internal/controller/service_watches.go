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
	"slices"
	"sync"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/translate"
)

// SetupWithManager adds the controller to mgr, and a cache of the metadata of
// Services. It looks at a Service again when that or the EgressTarget of its name
// changes.
func (r *ServiceReconciler) SetupWithManager(mgr ctrl.Manager) error {
	services, err := newServiceCache(mgr)
	if err != nil {
		return err
	}
	metadata := serviceMetadata()
	err = ctrl.NewControllerManagedBy(mgr).
		Named("service").
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minBackoff, maxBackoff),
		}).
		WatchesRawSource(source.Kind[client.Object](services, metadata, &handler.EnqueueRequestForObject{}, concerningServices())).
		WatchesRawSource(source.Kind[client.Object](mgr.GetCache(), &v1alpha1.EgressTarget{},
			handler.EnqueueRequestsFromMapFunc(serviceOf(services)))).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the Service controller: %w", err)
	}
	return nil
}

func serviceMetadata() *metav1.PartialObjectMetadata {
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
	return metadata
}

// cacheRunnable has the manager start a cache before any controller.
type cacheRunnable struct{ cache.Cache }

// GetCache is what the manager recognises a cache by.
func (c cacheRunnable) GetCache() cache.Cache { return c.Cache }

// newServiceCache is a cache of its own, since every Service of the cluster is in
// it and next to nothing of each.
func newServiceCache(mgr ctrl.Manager) (cache.Cache, error) {
	services, err := cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		DefaultTransform: stripService,
	})
	if err != nil {
		return nil, fmt.Errorf("make the cache of Services: %w", err)
	}
	if err := mgr.Add(cacheRunnable{services}); err != nil {
		return nil, fmt.Errorf("add the cache of Services: %w", err)
	}
	return services, nil
}

// stripService leaves what tells whether a Service concerns us. Of one that does
// not only the name stays: there may be tens of thousands.
func stripService(object any) (any, error) {
	metadata, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	out := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: metadata.Name, Namespace: unique.Make(metadata.Namespace).Value(), ResourceVersion: metadata.ResourceVersion,
	}}
	out.APIVersion, out.Kind = corev1.SchemeGroupVersion.String(), "Service"
	if !concerns(metadata) {
		return out, nil
	}
	out.UID, out.DeletionTimestamp = metadata.UID, metadata.DeletionTimestamp
	out.Annotations = pick(metadata.Annotations, translate.Keys)
	out.Labels = pick(metadata.Labels, translate.LabelKeys)
	for _, entry := range metadata.ManagedFields {
		if ourStatus(entry) {
			out.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: entry.Manager, Subresource: entry.Subresource}}
		}
	}
	return out, nil
}

func pick(all map[string]string, keys []string) map[string]string {
	var picked map[string]string
	for _, key := range keys {
		if value, found := all[key]; found {
			if picked == nil {
				picked = map[string]string{}
			}
			picked[key] = value
		}
	}
	return picked
}

// concerns is whether there may be something to do for a Service: it asks for a
// target, or it did and still has a status of ours.
func concerns(service client.Object) bool {
	return translate.HasTargetKey(service.GetAnnotations()) || slices.ContainsFunc(service.GetManagedFields(), ourStatus)
}

func ourStatus(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == translate.FieldOwner && entry.Subresource == "status"
}

// concerningServices also passes the update that ends a Service's concern.
func concerningServices() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return concerns(e.Object) },
		UpdateFunc:  func(e event.UpdateEvent) bool { return concerns(e.ObjectOld) || concerns(e.ObjectNew) },
		DeleteFunc:  func(e event.DeleteEvent) bool { return concerns(e.Object) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// serviceOf maps an EgressTarget to the Service that it was made for, or that
// waits for its name.
func serviceOf(services client.Reader) handler.MapFunc {
	return func(ctx context.Context, target client.Object) []reconcile.Request {
		key := client.ObjectKeyFromObject(target)
		request := []reconcile.Request{{NamespacedName: key}}
		if owner := metav1.GetControllerOf(target); owner != nil && owner.Kind == "Service" && owner.Name == key.Name {
			return request
		}
		service := serviceMetadata()
		if err := services.Get(ctx, key, service); err != nil {
			if client.IgnoreNotFound(err) != nil {
				logf.FromContext(ctx).Error(err, "Failed to map an EgressTarget to its Service")
			}
			return nil
		}
		if !concerns(service) {
			return nil
		}
		return request
	}
}

// unexpectedTypes is which Services of another type than ExternalName have been
// told so: such a Service has no status of ours that would show it.
type unexpectedTypes struct {
	mu   sync.Mutex
	told map[types.NamespacedName]string
}

// isNew is whether this text about the Service has yet to be said; the empty text
// takes back what was.
func (u *unexpectedTypes) isNew(svc *corev1.Service, text string) bool {
	key := client.ObjectKeyFromObject(svc)
	if text == "" {
		u.forget(key)
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.told == nil {
		u.told = map[types.NamespacedName]string{}
	}
	said := string(svc.UID) + text
	if u.told[key] == said {
		return false
	}
	u.told[key] = said
	return true
}

func (u *unexpectedTypes) forget(key types.NamespacedName) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.told, key)
}
