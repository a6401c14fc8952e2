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

package translate

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
)

// FieldOwner is the field manager under which translations are applied: by the
// webhook in a dry run, by the Service controller for real.
const FieldOwner = "egress-operator-service"

// Ownership is how an EgressTarget relates to the Service of its name.
type Ownership int

const (
	// Owned targets were translated from this Service.
	Owned Ownership = iota
	// Inherited targets were translated from an earlier Service of this name; the
	// garbage collector is about to delete them.
	Inherited
	// Foreign targets were written by somebody else, and are left alone.
	Foreign
)

// OwnershipOf compares by UID, which a new Service of an old name does not share.
func OwnershipOf(svc metav1.Object, target *v1alpha1.EgressTarget) Ownership {
	owner := metav1.GetControllerOf(target)
	switch {
	case owner == nil || owner.Kind != "Service" || owner.APIVersion != corev1.SchemeGroupVersion.String() || owner.Name != svc.GetName():
		return Foreign
	case owner.UID != svc.GetUID():
		return Inherited
	}
	return Owned
}

// ForeignText is what a Service is told whose name a Foreign target has.
func ForeignText(svc metav1.Object) string {
	return "EgressTarget " + svc.GetNamespace() + "/" + svc.GetName() +
		" exists and was not made for this Service: delete it, or give the Service another name"
}

// RefusedText is what a Service is told whose EgressTarget the API server
// refuses with err.
func RefusedText(err error) string {
	text := err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		text = status.Status().Message
	}
	return "the EgressTarget for this Service is refused: " + text
}
