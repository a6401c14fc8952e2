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
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// RemoveConditions takes conditions of these types off a Service, whoever set
// them. It is a patch and not an apply, which could only take back what this
// owner applied: another operator may have left conditions of the same types.
func (a Applier) RemoveConditions(ctx context.Context, service *corev1.Service, conditionTypes []string) error {
	if len(conditionTypes) == 0 {
		return nil
	}
	removed := make([]map[string]string, 0, len(conditionTypes))
	for _, name := range conditionTypes {
		removed = append(removed, map[string]string{"type": name, "$patch": "delete"})
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": service.UID},
		"status":   map[string]any{"conditions": removed},
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	err = a.Client.Status().Patch(ctx, service.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch), client.FieldOwner(a.FieldOwner))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove conditions of Service %s: %w", client.ObjectKeyFromObject(service), err)
	}
	return nil
}
