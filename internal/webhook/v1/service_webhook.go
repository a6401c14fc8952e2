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

// Package v1 judges Services at admission. It has no side effects: what an
// admitted Service leads to is made by the Service controller, once the Service
// is stored.
package v1

import (
	"context"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/translate"
)

// askTimeout bounds what the API server is asked for one Service. It is shorter
// than the timeoutSeconds of the webhook, so that a slow answer admits the
// Service with its warnings rather than without them.
const askTimeout = 2 * time.Second

// SetupServiceWebhookWithManager registers the webhook for Service in the manager.
func SetupServiceWebhookWithManager(mgr ctrl.Manager, opts translate.Options) error {
	return ctrl.NewWebhookManagedBy(mgr, &corev1.Service{}).
		WithValidator(&ServiceValidator{Options: opts, Reader: mgr.GetAPIReader(), Client: mgr.GetClient()}).
		WithDefaulter(&ServiceDefaulter{Options: opts}).
		Complete()
}

// +kubebuilder:webhook:path=/mutate--v1-service,mutating=true,failurePolicy=ignore,sideEffects=None,groups="",resources=services,verbs=create;update,versions=v1,name=mservice-v1.kb.io,admissionReviewVersions=v1,timeoutSeconds=3,reinvocationPolicy=IfNeeded,patch=`{"matchConditions":[{"name":"has-target-key","expression":"has(object.metadata.annotations) && ['tailscale.com/tailnet-fqdn','tailscale.com/tailnet-target-ip','tailscale.com/tailnet-ip','tailscale.com/ts-tailnet-target-ip'].exists(key, key in object.metadata.annotations)"}]}`

// ServiceDefaulter stamps spec.externalName with the final in-cluster name, a
// pure function of namespace and name: whoever applies a placeholder again has
// the right name stored in the same request.
type ServiceDefaulter struct {
	Options translate.Options
}

// Default implements admission.Defaulter. What cannot be translated is left as
// it is, for the validator to refuse.
func (d *ServiceDefaulter) Default(_ context.Context, svc *corev1.Service) error {
	// The name is still empty where the API server is to generate it.
	if svc.DeletionTimestamp != nil || svc.Name == "" || !translate.Ours(svc) {
		return nil
	}
	if result, errs := translate.Service(svc, d.Options); len(errs) == 0 {
		svc.Spec.ExternalName = result.ExternalName
	}
	return nil
}

// +kubebuilder:webhook:path=/validate--v1-service,mutating=false,failurePolicy=ignore,sideEffects=None,groups="",resources=services,verbs=create;update,versions=v1,name=vservice-v1.kb.io,admissionReviewVersions=v1,timeoutSeconds=5,patch=`{"matchConditions":[{"name":"has-target-key","expression":"has(object.metadata.annotations) && ['tailscale.com/tailnet-fqdn','tailscale.com/tailnet-target-ip','tailscale.com/tailnet-ip','tailscale.com/ts-tailnet-target-ip'].exists(key, key in object.metadata.annotations)"}]}`

// ServiceValidator refuses Services that cannot be translated, and those whose
// EgressTarget the API server would not take. An update that changes nothing of
// what is translated is never refused: whatever is wrong was there before, and
// who edits a label cannot help it.
type ServiceValidator struct {
	Options translate.Options
	// Reader reads EgressTargets without a cache.
	Reader client.Reader
	// Client dry-runs their application.
	Client client.Client
}

// ValidateCreate implements admission.Validator.
func (v *ServiceValidator) ValidateCreate(ctx context.Context, svc *corev1.Service) (admission.Warnings, error) {
	return v.validate(ctx, nil, svc)
}

// ValidateUpdate implements admission.Validator.
func (v *ServiceValidator) ValidateUpdate(ctx context.Context, old, svc *corev1.Service) (admission.Warnings, error) {
	return v.validate(ctx, old, svc)
}

// ValidateDelete implements admission.Validator. Deletion is not registered.
func (v *ServiceValidator) ValidateDelete(context.Context, *corev1.Service) (admission.Warnings, error) {
	return nil, nil
}

func (v *ServiceValidator) validate(ctx context.Context, old, svc *corev1.Service) (admission.Warnings, error) {
	if svc.DeletionTimestamp != nil {
		return nil, nil
	}
	if text := translate.UnexpectedType(svc); text != "" {
		return admission.Warnings{text}, nil
	}
	if !translate.Ours(svc) {
		return nil, nil
	}
	result, errs := translate.Service(svc, v.Options)
	before, errsBefore := v.before(old)
	if len(errs) > 0 {
		if translate.Message(errs) == translate.Message(errsBefore) {
			return admission.Warnings{translate.Message(errs)}, nil
		}
		return nil, refusal(svc, errs)
	}
	if before != nil && reflect.DeepEqual(before.Target, result.Target) {
		return result.Warnings, nil
	}
	return result.Warnings, v.ask(ctx, svc, result)
}

// before is the translation of the stored Service, if it was one of ours.
func (v *ServiceValidator) before(old *corev1.Service) (*translate.Result, field.ErrorList) {
	if old == nil || !translate.Ours(old) {
		return nil, nil
	}
	return translate.Service(old, v.Options)
}

// ask has the API server judge the EgressTarget: its schema, its rules and any
// policy on it. Only a judgement refuses the Service; no answer does not.
func (v *ServiceValidator) ask(ctx context.Context, svc *corev1.Service, result *translate.Result) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	existing := &v1alpha1.EgressTarget{}
	err := v.Reader.Get(ctx, client.ObjectKeyFromObject(svc), existing)
	switch {
	case err == nil:
		switch translate.OwnershipOf(svc, existing) {
		case translate.Foreign:
			return refusal(svc, field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), svc.Name, translate.ForeignText(svc))})
		case translate.Inherited:
			// It cannot be taken over, and will be gone.
			return nil
		}
	case !apierrors.IsNotFound(err):
		logf.FromContext(ctx).Info("Skipped the dry run of an EgressTarget", "reason", err.Error())
		return nil
	}
	err = v.Client.Apply(ctx, result.Target, client.DryRunAll, client.FieldOwner(translate.FieldOwner), client.ForceOwnership)
	switch {
	case err == nil:
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsConflict(err):
		return refusal(svc, field.ErrorList{field.Invalid(field.NewPath("metadata"), svc.Name, translate.RefusedText(err))})
	default:
		logf.FromContext(ctx).Info("Skipped the dry run of an EgressTarget", "reason", err.Error())
	}
	return nil
}

// refusal answers with the sentences alone; its causes name the fields.
func refusal(svc *corev1.Service, errs field.ErrorList) error {
	status := apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, svc.Name, errs)
	status.ErrStatus.Message = translate.Message(errs)
	causes := make([]metav1.StatusCause, 0, len(errs))
	for _, err := range errs {
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseType(err.Type), Message: err.Detail, Field: err.Field})
	}
	status.ErrStatus.Details.Causes = causes
	return status
}
