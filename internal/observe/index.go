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

package observe

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
)

const (
	// ByParent indexes children by the labels that say what they were made for.
	ByParent = "parent"
	// ByLabels indexes EgressTargets by the labels that their children have. A long
	// name is cut in a label, so that a label alone does not always tell the name.
	ByLabels = "labels"
)

// Indexer is implemented by caches.
type Indexer interface {
	IndexField(ctx context.Context, object client.Object, field string, extract client.IndexerFunc) error
}

// IndexChildren adds ByParent to a cache for every kind of child.
func IndexChildren(ctx context.Context, indexer Indexer) error {
	for _, kind := range ChildKinds() {
		err := indexer.IndexField(ctx, kind, ByParent, func(o client.Object) []string {
			if key, ok := parentOf(o); ok {
				return []string{key}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("index %T: %w", kind, err)
		}
	}
	return nil
}

// IndexTargets adds ByLabels to a cache.
func IndexTargets(ctx context.Context, indexer Indexer) error {
	err := indexer.IndexField(ctx, &v1alpha1.EgressTarget{}, ByLabels, func(o client.Object) []string {
		return []string{parentKey(client.ObjectKeyFromObject(o))}
	})
	if err != nil {
		return fmt.Errorf("index EgressTargets: %w", err)
	}
	return nil
}

// Parent is the EgressTarget that child was made for. Where that no longer
// exists, it is what the labels say; ok is false where they say nothing.
func (o Observer) Parent(ctx context.Context, child client.Object) (key types.NamespacedName, ok bool, err error) {
	index, ok := parentOf(child)
	if !ok {
		return key, false, nil
	}
	var targets v1alpha1.EgressTargetList
	if err := o.Targets.List(ctx, &targets, client.MatchingFields{ByLabels: index}); err != nil {
		return key, false, fmt.Errorf("find the EgressTarget of %s: %w", client.ObjectKeyFromObject(child), err)
	}
	if len(targets.Items) > 0 {
		return client.ObjectKeyFromObject(&targets.Items[0]), true, nil
	}
	labels := child.GetLabels()
	return types.NamespacedName{Namespace: labels[v1alpha1.LabelParentNamespace], Name: labels[v1alpha1.LabelParentResource]}, true, nil
}

// parentKey is an index value: namespace and name as labels have them.
func parentKey(key types.NamespacedName) string {
	return key.Namespace + "/" + names.LabelValue(key.Name)
}

func parentOf(child client.Object) (string, bool) {
	labels := child.GetLabels()
	if labels[v1alpha1.LabelManaged] != "true" || labels[v1alpha1.LabelParentType] != names.ParentEgressTarget {
		return "", false
	}
	return labels[v1alpha1.LabelParentNamespace] + "/" + labels[v1alpha1.LabelParentResource], true
}
