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

package apply

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	v1alpha1ac "github.com/tailnet-egress/egress-operator/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// Delete removes exactly the object that was observed. One that is gone, or going
// already, is a success.
func (a Applier) Delete(ctx context.Context, live client.Object) error {
	if !live.GetDeletionTimestamp().IsZero() {
		return nil
	}
	uid := live.GetUID()
	err := a.Client.Delete(ctx, live, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %T %s: %w", live, client.ObjectKeyFromObject(live), err)
	}
	a.Sent.forget(live)
	return nil
}

// Claim creates service, so that its name is ours and nobody else's. The error is
// AlreadyExists where somebody has it.
func (a Applier) Claim(ctx context.Context, service *corev1.Service) error {
	if err := a.Client.Create(ctx, service.DeepCopy(), client.FieldOwner(a.FieldOwner)); err != nil {
		return fmt.Errorf("claim Service %s: %w", client.ObjectKeyFromObject(service), err)
	}
	return nil
}

// AddFinalizer makes target wait for its children when it is deleted.
func (a Applier) AddFinalizer(ctx context.Context, target *v1alpha1.EgressTarget) error {
	if controllerutil.ContainsFinalizer(target, v1alpha1.Finalizer) {
		return nil
	}
	desired := v1alpha1ac.EgressTarget(target.Name, target.Namespace).WithUID(target.UID).WithFinalizers(v1alpha1.Finalizer)
	_, err := a.Apply(ctx, desired, nil)
	return err
}

// RemoveFinalizer lets target go. It is a patch and not an apply, which could
// only take back what this owner applied: an object that was restored from a
// backup has a finalizer of another manager.
func (a Applier) RemoveFinalizer(ctx context.Context, target *v1alpha1.EgressTarget) error {
	patched := target.DeepCopy()
	if !controllerutil.RemoveFinalizer(patched, v1alpha1.Finalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(target, client.MergeFromWithOptimisticLock{})
	err := a.Client.Patch(ctx, patched, patch, client.FieldOwner(a.FieldOwner))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer of EgressTarget %s: %w", client.ObjectKeyFromObject(target), err)
	}
	a.Sent.forget(target)
	return nil
}

// Transient is whether err goes away once the caches have caught up: somebody
// else was faster.
func Transient(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}

// NamespaceGoing is whether err says that the object's namespace is being
// deleted, with all that is in it.
func NamespaceGoing(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}
