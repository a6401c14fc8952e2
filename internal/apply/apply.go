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

// Package apply is the only place that writes to the API server: server-side
// apply with typed apply configurations, pruning and finalizers.
package apply

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clientac "k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	v1alpha1ac "github.com/tailnet-egress/egress-operator/api/v1alpha1/applyconfiguration"
)

const statusSubresource = "status"

// Applier writes objects by server-side apply. It takes the fields it wants from
// any other manager: each of our objects has one writer.
type Applier struct {
	Client client.Client
	// FieldOwner is the field manager; one per controller.
	FieldOwner string
	// Sent, where set, keeps what was sent from being sent again while a cache has
	// not caught up with it.
	Sent *Sent
}

// Apply makes the fields of desired so, and releases those that this owner set
// earlier and no longer wants. live is the object as last observed, nil where
// there is none; where it already has what desired says, nothing is sent.
// Returned errors are those of the API server, wrapped.
//
// A metadata.uid or metadata.resourceVersion in desired is a precondition: the
// API server answers Conflict where the object differs.
func (a Applier) Apply(ctx context.Context, desired runtime.ApplyConfiguration, live client.Object) (bool, error) {
	return a.apply(desired, live, "", func(body runtime.ApplyConfiguration) error {
		return a.Client.Apply(ctx, body, client.FieldOwner(a.FieldOwner), client.ForceOwnership)
	})
}

// ApplyStatus is Apply for the status subresource.
func (a Applier) ApplyStatus(ctx context.Context, desired runtime.ApplyConfiguration, live client.Object) (bool, error) {
	return a.apply(desired, live, statusSubresource, func(body runtime.ApplyConfiguration) error {
		return a.Client.Status().Apply(ctx, body, client.FieldOwner(a.FieldOwner), client.ForceOwnership)
	})
}

// Behind is whether live, as observed, lacks the status that this owner has
// written meanwhile: what is computed from it would be out of date.
func (a Applier) Behind(live client.Object) bool { return a.Sent.behind(live, statusSubresource) }

func (a Applier) apply(desired runtime.ApplyConfiguration, live client.Object, subresource string, send func(runtime.ApplyConfiguration) error) (bool, error) {
	body, same, err := a.compare(desired, live, subresource)
	if err != nil {
		return false, err
	}
	if same {
		// Asking forgets what has been observed by now.
		a.Sent.pending(live, subresource)
		return false, nil
	}
	content, err := body.MarshalJSON()
	if err != nil {
		return false, fmt.Errorf("encode %s: %w", describe(body), err)
	}
	if a.Sent.already(live, subresource, content) {
		return false, nil
	}
	what := strings.TrimSpace(subresource + " " + describe(body))
	if err := send(client.ApplyConfigurationFromUnstructured(body)); err != nil {
		return false, fmt.Errorf("apply %s: %w", what, err)
	}
	a.Sent.remember(live, subresource, content, body)
	return true, nil
}

// compare returns desired as what is sent, and whether live already has it.
func (a Applier) compare(desired runtime.ApplyConfiguration, live client.Object, subresource string) (*unstructured.Unstructured, bool, error) {
	body, err := toUnstructured(desired)
	if err != nil {
		return nil, false, fmt.Errorf("encode apply configuration: %w", err)
	}
	if live == nil {
		return body, false, nil
	}
	want, err := a.typedDesired(body)
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", describe(body), err)
	}
	has, err := a.typedOwned(live, subresource)
	if err != nil {
		return nil, false, fmt.Errorf("read what we own of %s: %w", describe(body), err)
	}
	if has == nil {
		return body, false, nil
	}
	difference, err := has.Compare(want)
	if err != nil {
		return nil, false, fmt.Errorf("compare %s: %w", describe(body), err)
	}
	return body, difference.IsSame(), nil
}

// typedDesired is desired without what identifies the object: the API server
// does not count that among the fields of an owner.
func (a Applier) typedDesired(body *unstructured.Unstructured) (*typed.TypedValue, error) {
	body = body.DeepCopy()
	converter := a.converter(body.GroupVersionKind())
	for _, field := range []string{"name", "namespace", "uid", "resourceVersion"} {
		unstructured.RemoveNestedField(body.Object, "metadata", field)
	}
	if metadata, ok := body.Object["metadata"].(map[string]any); ok && len(metadata) == 0 {
		delete(body.Object, "metadata")
	}
	value, err := converter.ObjectToTyped(body)
	if err != nil {
		return nil, err
	}
	return value.RemoveItems(typeMeta), nil
}

var typeMeta = fieldpath.NewSet(fieldpath.MakePathOrDie("apiVersion"), fieldpath.MakePathOrDie("kind"))

// typedOwned is the fields of live that this owner applied, nil for none.
func (a Applier) typedOwned(live client.Object, subresource string) (*typed.TypedValue, error) {
	fields, err := owned(live, a.FieldOwner, subresource)
	if err != nil || fields == nil {
		return nil, err
	}
	gvk, err := apiutil.GVKForObject(live, a.Client.Scheme())
	if err != nil {
		return nil, err
	}
	live, ok := live.DeepCopyObject().(client.Object)
	if !ok {
		return nil, fmt.Errorf("%s has no metadata", gvk.Kind)
	}
	live.GetObjectKind().SetGroupVersionKind(gvk)
	value, err := a.converter(gvk).ObjectToTyped(live, typed.AllowDuplicates)
	if err != nil {
		return nil, err
	}
	return value.ExtractItems(fields.Leaves()), nil
}

func owned(live client.Object, owner, subresource string) (*fieldpath.Set, error) {
	for _, entry := range live.GetManagedFields() {
		if entry.Manager != owner || entry.Operation != "Apply" || entry.Subresource != subresource || entry.FieldsV1 == nil {
			continue
		}
		fields := &fieldpath.Set{}
		if err := fields.FromJSON(entry.FieldsV1.GetRawReader()); err != nil {
			return nil, fmt.Errorf("managed fields: %w", err)
		}
		return fields, nil
	}
	return nil, nil
}

func (a Applier) converter(gvk schema.GroupVersionKind) managedfields.TypeConverter {
	if gvk.Group == v1alpha1.SchemeGroupVersion.Group {
		return v1alpha1ac.NewTypeConverter(a.Client.Scheme())
	}
	return clientac.NewTypeConverter(a.Client.Scheme())
}

func toUnstructured(desired runtime.ApplyConfiguration) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(desired)
	if err != nil {
		return nil, err
	}
	body := &unstructured.Unstructured{}
	return body, body.UnmarshalJSON(bytes.TrimSpace(data))
}

func describe(body *unstructured.Unstructured) string {
	if body.GetNamespace() == "" {
		return body.GetKind() + " " + body.GetName()
	}
	return body.GetKind() + " " + body.GetNamespace() + "/" + body.GetName()
}
