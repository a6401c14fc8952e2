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

// Package controller is the reconcilers: thin plumbing from observe over plan and
// apply to status, and the watches that say when.
package controller

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	v1alpha1ac "github.com/tailnet-egress/egress-operator/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/apply"
	"github.com/tailnet-egress/egress-operator/internal/observe"
	"github.com/tailnet-egress/egress-operator/internal/plan"
	"github.com/tailnet-egress/egress-operator/internal/status"
)

const (
	// conflictDelay is how soon a pass that somebody else was faster than runs
	// again: caches have caught up by then.
	conflictDelay = 200 * time.Millisecond
	// staleDelay is how soon a pass runs again whose cache lags behind our own write
	// of the status; the watch event of that write is usually sooner.
	staleDelay = 100 * time.Millisecond
	// pollInterval is how often what cannot be watched is looked at.
	pollInterval = 30 * time.Second
)

// EgressTargetReconciler gives every EgressTarget its proxy, its Service and a
// status that is true.
type EgressTargetReconciler struct {
	Observer observe.Observer
	Applier  apply.Applier
	Recorder events.EventRecorder
	Now      func() time.Time
}

// +kubebuilder:rbac:groups=tailscale.com,resources=egresstargets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=tailscale.com,resources=egresstargets/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",namespace=system,resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=system,resources=secrets;configmaps,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups="",namespace=system,resources=serviceaccounts,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps,namespace=system,resources=statefulsets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,namespace=system,resources=roles;rolebindings,verbs=get;list;watch;create;patch;delete

// Reconcile runs one pass: observe, plan, apply, report.
func (r *EgressTargetReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	observed, err := r.Observer.Target(ctx, req.NamespacedName)
	if apierrors.IsNotFound(err) {
		return r.retry(ctx, r.pruneOrphans(ctx, req.NamespacedName))
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if r.Applier.Behind(observed.Target) {
		return ctrl.Result{RequeueAfter: staleDelay}, nil
	}
	if !observed.Target.DeletionTimestamp.IsZero() {
		return r.retry(ctx, r.finalize(ctx, observed.Target))
	}
	if err := r.Applier.AddFinalizer(ctx, observed.Target); err != nil {
		return r.retry(ctx, err)
	}
	desired := plan.Target(observed)
	routed, writeErr := r.write(ctx, desired)
	if writeErr != nil && sentence(writeErr) == "" {
		// What was observed is out of date, and so are the facts.
		return r.retry(ctx, writeErr)
	}
	outcome, err := r.report(ctx, observed.Target, desired.Facts.Written(routed, sentence(writeErr)))
	if err := errors.Join(writeErr, err); err != nil {
		return r.retry(ctx, err)
	}
	if outcome == status.Polling {
		return ctrl.Result{RequeueAfter: pollInterval}, nil
	}
	return ctrl.Result{}, nil
}

// write makes the cluster what the plan says. One object's error keeps no other
// from being written; routed is whether those that clients find the proxy by are.
func (r *EgressTargetReconciler) write(ctx context.Context, desired plan.Desired) (routed bool, err error) {
	var errs []error
	routed = true
	for _, child := range desired.Apply {
		err := r.writeChild(ctx, child)
		if err != nil && child.Routes {
			routed = false
		}
		errs = append(errs, err)
	}
	for _, object := range desired.Prune {
		errs = append(errs, r.Applier.Delete(ctx, object))
	}
	return routed, errors.Join(errs...)
}

func (r *EgressTargetReconciler) writeChild(ctx context.Context, child plan.Child) error {
	if child.Claim != nil {
		if err := r.Applier.Claim(ctx, child.Claim); err != nil {
			return err
		}
	}
	_, err := r.Applier.Apply(ctx, child.Apply, child.Live)
	return err
}

// report writes the status and sends the events of what changed in it.
func (r *EgressTargetReconciler) report(ctx context.Context, target *v1alpha1.EgressTarget, facts status.Facts) (status.Outcome, error) {
	desired, outcome := status.Target(facts, target.Status.Conditions, r.Now())
	// The UID keeps the status of one target from another of its name.
	object := v1alpha1ac.EgressTarget(target.Name, target.Namespace).WithUID(target.UID).WithStatus(desired)
	changed, err := r.Applier.ApplyStatus(ctx, object, target)
	if changed {
		emitChanges(r.Recorder, target, target.Status.Conditions, desired.Conditions)
	}
	return outcome, client.IgnoreNotFound(err)
}

// finalize removes all that was made for a target and lets it go. It asks the API
// server and not the caches what there is: what was made a moment ago would
// otherwise stay for ever.
func (r *EgressTargetReconciler) finalize(ctx context.Context, target *v1alpha1.EgressTarget) error {
	children, err := r.Observer.LiveChildren(ctx, types.NamespacedName{Namespace: target.Namespace, Name: target.Name})
	if err != nil {
		return err
	}
	if _, err := r.write(ctx, plan.Desired{Prune: plan.Teardown(children)}); err != nil {
		return err
	}
	return r.Applier.RemoveFinalizer(ctx, target)
}

// pruneOrphans removes what is left of a target that went without its finalizer.
func (r *EgressTargetReconciler) pruneOrphans(ctx context.Context, key types.NamespacedName) error {
	children, err := r.Observer.CachedChildren(ctx, key)
	if err != nil {
		return err
	}
	_, err = r.write(ctx, plan.Desired{Prune: plan.Teardown(children)})
	return err
}

// retry decides by the type of err when the pass runs again.
func (r *EgressTargetReconciler) retry(ctx context.Context, err error) (ctrl.Result, error) {
	switch {
	case err == nil:
		return ctrl.Result{}, nil
	case sentence(err) != "":
		return ctrl.Result{}, err
	case apply.NamespaceGoing(err):
		// The target goes with its namespace.
		return ctrl.Result{}, nil
	}
	logf.FromContext(ctx).V(1).Info("Somebody else was faster, trying again", "cause", err.Error())
	return ctrl.Result{RequeueAfter: conflictDelay}, nil
}

// sentence is what a person should know of err: its first part that does not go
// away by itself, empty for none.
func sentence(err error) string {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		for _, e := range joined.Unwrap() {
			if s := sentence(e); s != "" {
				return s
			}
		}
		return ""
	}
	if err == nil || apply.Transient(err) || apply.NamespaceGoing(err) {
		return ""
	}
	return err.Error()
}
