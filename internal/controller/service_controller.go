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
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/apply"
	"github.com/tailnet-egress/egress-operator/internal/status"
	"github.com/tailnet-egress/egress-operator/internal/translate"
)

const (
	eventTargetCreated  = "EgressTargetCreated"
	eventTargetDeleted  = "EgressTargetDeleted"
	eventUnexpectedType = "UnexpectedServiceType"
)

// ServiceReconciler keeps the EgressTarget of every annotated ExternalName
// Service, and reports on the Service how that fares. A Service that becomes
// invalid keeps its last good EgressTarget; one that stops asking for a target
// loses it.
type ServiceReconciler struct {
	// Targets reads EgressTargets, from a cache.
	Targets client.Reader
	// Live reads without a cache.
	Live client.Reader
	// Applier has the field owner translate.FieldOwner.
	Applier  apply.Applier
	Recorder events.EventRecorder
	Options  translate.Options
	Now      func() time.Time

	unexpected unexpectedTypes
}

// NewServiceReconciler takes what it needs of mgr.
func NewServiceReconciler(mgr ctrl.Manager, opts translate.Options) *ServiceReconciler {
	return &ServiceReconciler{
		Targets:  mgr.GetClient(),
		Live:     mgr.GetAPIReader(),
		Applier:  apply.Applier{Client: mgr.GetClient(), FieldOwner: translate.FieldOwner},
		Recorder: mgr.GetEventRecorder("egress-operator"),
		Options:  opts,
		Now:      time.Now,
	}
}

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=services/status,verbs=patch
// +kubebuilder:rbac:groups=tailscale.com,resources=egresstargets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile runs one pass: read, translate, apply, report.
func (r *ServiceReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	svc := &corev1.Service{}
	if err := r.Live.Get(ctx, req.NamespacedName, svc); apierrors.IsNotFound(err) {
		r.unexpected.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("get Service %s: %w", req.NamespacedName, err)
	}
	if svc.DeletionTimestamp != nil {
		// The garbage collector takes the target once the Service is gone; until
		// then its traffic flows.
		return ctrl.Result{}, nil
	}
	target, err := r.target(ctx, svc)
	if err != nil {
		return ctrl.Result{}, err
	}
	if text := translate.UnexpectedType(svc); r.unexpected.isNew(svc, text) {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, eventUnexpectedType, "Translate", "%s", text)
	}
	if !translate.Ours(svc) {
		return retryService(ctx, r.release(ctx, svc, target))
	}
	facts, err := r.translate(ctx, svc, target)
	if err != nil && facts.Failed == "" {
		return retryService(ctx, err)
	}
	return retryService(ctx, errors.Join(err, r.report(ctx, svc, facts)))
}

// target is the EgressTarget of the Service's name, nil for none. Where the cache
// has none the API server is asked, so that nobody's is overwritten unseen.
func (r *ServiceReconciler) target(ctx context.Context, svc *corev1.Service) (*v1alpha1.EgressTarget, error) {
	target := &v1alpha1.EgressTarget{}
	key := client.ObjectKeyFromObject(svc)
	err := r.Targets.Get(ctx, key, target)
	if apierrors.IsNotFound(err) {
		err = r.Live.Get(ctx, key, target)
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get EgressTarget %s: %w", key, err)
	}
	return target, nil
}

// translate makes the EgressTarget what the Service says. An error with
// Facts.Failed set is one that a person should know of.
func (r *ServiceReconciler) translate(ctx context.Context, svc *corev1.Service, target *v1alpha1.EgressTarget) (status.ServiceFacts, error) {
	_, grouped := svc.Annotations[v1alpha1.AnnotationProxyGroup]
	facts := status.ServiceFacts{Generation: svc.Generation, Grouped: grouped}
	owned := target != nil && translate.OwnershipOf(svc, target) == translate.Owned
	if owned {
		facts.Target = target
	}
	result, errs := translate.Service(svc, r.Options)
	switch {
	case len(errs) > 0:
		facts.Invalid = translate.Message(errs)
		return facts, nil
	case target != nil && translate.OwnershipOf(svc, target) == translate.Foreign:
		facts.Failed = translate.ForeignText(svc)
		return facts, nil
	case target != nil && !owned:
		// What an earlier Service of this name left is about to be collected, and
		// its deletion leads back here.
		return facts, nil
	}
	if err := r.applyTarget(ctx, svc, result, target); err != nil {
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) && !apply.NamespaceGoing(err) {
			facts.Failed = translate.RefusedText(err)
		}
		return facts, err
	}
	return facts, r.stamp(ctx, svc, result.ExternalName)
}

func (r *ServiceReconciler) applyTarget(ctx context.Context, svc *corev1.Service, result *translate.Result, live *v1alpha1.EgressTarget) error {
	if live == nil {
		if _, err := r.Applier.Apply(ctx, result.Target, nil); err != nil {
			return err
		}
		r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, eventTargetCreated, "Translate", "Created EgressTarget %s", svc.Name)
		return nil
	}
	// The UID keeps the spec of one target from another of its name.
	_, err := r.Applier.Apply(ctx, result.Target.WithUID(live.UID), live)
	return err
}

// stamp does what the webhook did unless that was down.
func (r *ServiceReconciler) stamp(ctx context.Context, svc *corev1.Service, externalName string) error {
	if svc.Spec.ExternalName == externalName {
		return nil
	}
	desired := corev1ac.Service(svc.Name, svc.Namespace).WithUID(svc.UID).
		WithSpec(corev1ac.ServiceSpec().WithExternalName(externalName))
	_, err := r.Applier.Apply(ctx, desired, nil)
	return err
}

// report writes the conditions and sends the events of what changed in them.
func (r *ServiceReconciler) report(ctx context.Context, svc *corev1.Service, facts status.ServiceFacts) error {
	previous := svc.Status.Conditions
	conditions := status.Service(facts, previous, r.Now())
	if err := r.Applier.RemoveConditions(ctx, svc, leftOver(previous, conditions)); err != nil {
		return err
	}
	desired := corev1ac.Service(svc.Name, svc.Namespace).WithUID(svc.UID).WithStatus(corev1ac.ServiceStatus())
	desired.Status.Conditions = conditions
	changed, err := r.Applier.ApplyStatus(ctx, desired, svc)
	if changed {
		emitChanges(r.Recorder, svc, forgetOldMistakes(previous, conditions), conditions)
		r.tellOfTarget(svc, facts, previous, conditions)
	}
	return client.IgnoreNotFound(err)
}

// tellOfTarget sends what a person can do something about while the Service is
// only pending: a name that does not exist may be a typing error.
func (r *ServiceReconciler) tellOfTarget(svc *corev1.Service, facts status.ServiceFacts, previous []metav1.Condition, now []metav1ac.ConditionApplyConfiguration) {
	if facts.Target == nil {
		return
	}
	ready := meta.FindStatusCondition(facts.Target.Status.Conditions, v1alpha1.ConditionReady)
	condition := conditions(now)[0]
	if ready == nil || waiting[ready.Reason] || condition.Reason != v1alpha1.ReasonProxyPending {
		return
	}
	// What was True and is no longer has been told as a change already.
	old := meta.FindStatusCondition(previous, condition.Type)
	if old == nil || old.Status != metav1.ConditionTrue && old.Message != condition.Message {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, ready.Reason, condition.Type, "%s", status.Cut(condition.Message, maxNote))
	}
}

// release lets go of a Service that is not, or no longer, ours. The target goes
// last: it is what leads back here should this pass not reach its end.
func (r *ServiceReconciler) release(ctx context.Context, svc *corev1.Service, target *v1alpha1.EgressTarget) error {
	if err := r.Applier.RemoveConditions(ctx, svc, leftOver(svc.Status.Conditions, nil)); err != nil {
		return err
	}
	if target == nil || translate.OwnershipOf(svc, target) != translate.Owned {
		return nil
	}
	// The cache may still have what this controller deleted a moment ago.
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(target), target); err != nil {
		return client.IgnoreNotFound(err)
	}
	if target.DeletionTimestamp != nil || translate.OwnershipOf(svc, target) != translate.Owned {
		return nil
	}
	if err := r.Applier.Delete(ctx, target); err != nil {
		return err
	}
	r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, eventTargetDeleted, "Translate",
		"Deleted EgressTarget %s: the Service no longer asks for it", svc.Name)
	return nil
}

// leftOver is which types of ours are in previous but not in now.
func leftOver(previous []metav1.Condition, now []metav1ac.ConditionApplyConfiguration) []string {
	return slices.DeleteFunc(slices.Clone(status.ServiceTypes), func(name string) bool {
		return meta.FindStatusCondition(previous, name) == nil ||
			slices.ContainsFunc(now, func(c metav1ac.ConditionApplyConfiguration) bool { return *c.Type == name })
	})
}

// forgetOldMistakes is previous without those that say Invalid for another reason
// than now: who corrects one mistake wants to hear of the next.
func forgetOldMistakes(previous []metav1.Condition, now []metav1ac.ConditionApplyConfiguration) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(previous), func(old metav1.Condition) bool {
		invalid := old.Reason == v1alpha1.ReasonProxyInvalid || old.Reason == v1alpha1.ReasonEgressSvcInvalid
		return invalid && slices.ContainsFunc(now, func(c metav1ac.ConditionApplyConfiguration) bool {
			return *c.Type == old.Type && ptr.Deref(c.Message, "") != old.Message
		})
	})
}

// retryService decides by the type of err when the pass runs again.
func retryService(ctx context.Context, err error) (ctrl.Result, error) {
	switch {
	case err == nil, apply.NamespaceGoing(err):
		return ctrl.Result{}, nil
	case apply.Transient(err):
		logf.FromContext(ctx).V(1).Info("Somebody else was faster, trying again", "cause", err.Error())
		return ctrl.Result{RequeueAfter: conflictDelay}, nil
	}
	return ctrl.Result{}, err
}
