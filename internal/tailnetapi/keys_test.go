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

package tailnetapi

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestSecretKeys(t *testing.T) {
	name := types.NamespacedName{Namespace: "tailscale", Name: "operator-oauth"}
	for _, tc := range []struct {
		name    string
		data    map[string][]byte
		absent  bool
		want    string
		missing []string
	}{
		{name: "there", data: map[string][]byte{"auth_key": []byte("k")}, want: "k"},
		{name: "with the end of a file's line", data: map[string][]byte{"auth_key": []byte(" k\n")}, want: "k"},
		{name: "blank", data: map[string][]byte{"auth_key": []byte("\n")}, missing: []string{"has no key", "auth_key"}},
		{name: "absent", absent: true, missing: []string{"create Secret", "operator-oauth", "tailscale", "auth_key"}},
		{name: "empty", data: map[string][]byte{"auth_key": {}}, missing: []string{"has no key", "auth_key"}},
		{name: "other key", data: map[string][]byte{"client_id": []byte("k")}, missing: []string{"has no key", "auth_key"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			builder := fake.NewClientBuilder()
			if !tc.absent {
				builder.WithObjects(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Data: tc.data})
			}
			got, err := SecretKeys{Reader: builder.Build(), Secret: name}.AuthKey(t.Context(), KeyRequest{})
			var missing NoCredentialsError
			if got != tc.want || errors.As(err, &missing) != (tc.missing != nil) {
				t.Fatalf("got %q, %v", got, err)
			}
			for _, part := range tc.missing {
				if !strings.Contains(missing.Message, part) {
					t.Errorf("%q does not name %q", missing.Message, part)
				}
			}
		})
	}
}
