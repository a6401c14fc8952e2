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

// Package tailnetapi is what the operator asks of a tailnet's control plane: keys
// that log new proxies in.
package tailnetapi

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// AuthKeyField is the key of an auth key in its Secret.
const AuthKeyField = "auth_key"

// KeyRequest is the device that a key is for.
type KeyRequest struct {
	Hostname string
	// Tags are ACL tags, such as tag:k8s.
	Tags []string
}

// Keys gives the keys that log new proxies in.
type Keys interface {
	// AuthKey is a key for one device. A NoCredentialsError means that a person has
	// to provide something first.
	AuthKey(ctx context.Context, request KeyRequest) (string, error)
}

// NoCredentialsError says in a sentence what a person has to create.
type NoCredentialsError struct{ Message string }

func (e NoCredentialsError) Error() string { return e.Message }

// SecretKeys takes the one auth key that a person has put in a Secret. The tags
// of a device are then those of that key, whatever is asked for.
type SecretKeys struct {
	Reader client.Reader
	Secret types.NamespacedName
}

// AuthKey implements Keys.
func (s SecretKeys) AuthKey(ctx context.Context, _ KeyRequest) (string, error) {
	var secret corev1.Secret
	err := s.Reader.Get(ctx, s.Secret, &secret)
	if apierrors.IsNotFound(err) {
		return "", NoCredentialsError{fmt.Sprintf(
			"There is no key to log a new proxy in with: create Secret %q in namespace %q with the key %q",
			s.Secret.Name, s.Secret.Namespace, AuthKeyField)}
	}
	if err != nil {
		return "", fmt.Errorf("read Secret %s: %w", s.Secret, err)
	}
	// A Secret made from a file ends with the file's line.
	key := strings.TrimSpace(string(secret.Data[AuthKeyField]))
	if key == "" {
		return "", NoCredentialsError{fmt.Sprintf(
			"There is no key to log a new proxy in with: Secret %q in namespace %q has no key %q",
			s.Secret.Name, s.Secret.Namespace, AuthKeyField)}
	}
	return key, nil
}
