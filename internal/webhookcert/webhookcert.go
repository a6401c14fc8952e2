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

// Package webhookcert gives the admission webhook a certificate that the API
// server trusts: cert-controller makes and renews it in a Secret and writes its
// authority into the webhook configurations.
package webhookcert

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/apply"
)

const (
	// FieldOwner is the field manager of the Secret's labels.
	FieldOwner = "egress-operator-webhookcert"
	// ensureInterval is how often a lost Secret is looked for, in a cache.
	ensureInterval = 15 * time.Second
)

// Options name the objects of the webhook.
type Options struct {
	Namespace string
	// SecretName is the Secret with the certificate; it is made where it is missing.
	SecretName string
	// ServiceName is the Service by which the API server reaches the webhook.
	ServiceName string
	// MutatingName and ValidatingName are the webhook configurations.
	MutatingName, ValidatingName string
}

// Certificates serve the webhook's certificate from its Secret, so that a new one
// is in use at once, where a mounted Secret lags behind by a minute.
type Certificates struct {
	options Options
	client  client.Client
	// secrets reads a cache that holds the Secret by its label.
	secrets client.Reader

	mu      sync.Mutex
	version string
	current *tls.Certificate
}

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,verbs=get;list;watch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=egress-operator-mutating-webhook-configuration,verbs=update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=egress-operator-validating-webhook-configuration,verbs=update

// Setup adds what keeps the certificate to mgr. secrets is a cache of what bears
// the label tailscale.com/managed.
func (c *Certificates) Setup(mgr ctrl.Manager, secrets client.Reader, options Options) error {
	c.mu.Lock()
	c.options, c.client, c.secrets = options, mgr.GetClient(), secrets
	c.mu.Unlock()
	err := rotator.AddRotator(reconcilerOnly{mgr}, &rotator.CertRotator{
		SecretKey:      c.key(),
		CAName:         "egress-operator-ca",
		CAOrganization: "egress-operator",
		DNSName:        options.ServiceName + "." + options.Namespace + ".svc",
		IsReady:        make(chan struct{}),
		FieldOwner:     FieldOwner,
		Webhooks: []rotator.WebhookInfo{
			{Name: options.MutatingName, Type: rotator.Mutating},
			{Name: options.ValidatingName, Type: rotator.Validating},
		},
	})
	if err != nil {
		return fmt.Errorf("set up webhook certificates: %w", err)
	}
	return mgr.Add(c)
}

// reconcilerOnly keeps the rotator's own loop out of a manager. That loop ends
// the manager, controllers and all, when no certificate files are mounted; the
// reconciler which comes with it makes, renews and injects certificates as well,
// whenever the Secret or a webhook configuration changes or is synced again.
type reconcilerOnly struct{ manager.Manager }

func (m reconcilerOnly) Add(r manager.Runnable) error {
	if _, isLoop := r.(*rotator.CertRotator); isLoop {
		return nil
	}
	return m.Manager.Add(r)
}

// NeedLeaderElection is false: every replica serves the webhook.
func (c *Certificates) NeedLeaderElection() bool { return false }

// Start keeps the Secret in existence until ctx ends; the rotator only fills one
// that exists.
func (c *Certificates) Start(ctx context.Context) error {
	log := ctrl.LoggerFrom(ctx).WithName("webhook-certificates")
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := c.ensureSecret(ctx); err != nil {
			log.Error(err, "Failed to make the Secret of the webhook's certificate")
		}
	}, ensureInterval)
	return nil
}

func (c *Certificates) ensureSecret(ctx context.Context) error {
	err := c.secrets.Get(ctx, c.key(), &corev1.Secret{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	secret := corev1ac.Secret(c.options.SecretName, c.options.Namespace).WithLabels(map[string]string{
		v1alpha1.LabelManaged: "true", "app.kubernetes.io/name": "egress-operator", "app.kubernetes.io/component": "webhook"})
	_, err = apply.Applier{Client: c.client, FieldOwner: FieldOwner}.Apply(ctx, secret, nil)
	return err
}

// Get is for tls.Config.GetCertificate. Until there is a certificate, handshakes
// fail, and with them the webhook's readiness.
func (c *Certificates) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.secrets == nil {
		return nil, errors.New("webhook certificates are not set up")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var secret corev1.Secret
	if err := c.secrets.Get(ctx, c.key(), &secret); err != nil {
		return nil, fmt.Errorf("read the webhook's certificate: %w", err)
	}
	if c.current != nil && c.version == secret.ResourceVersion {
		return c.current, nil
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("read the webhook's certificate: %w", err)
	}
	c.version, c.current = secret.ResourceVersion, &pair
	return c.current, nil
}

func (c *Certificates) key() types.NamespacedName {
	return types.NamespacedName{Namespace: c.options.Namespace, Name: c.options.SecretName}
}
