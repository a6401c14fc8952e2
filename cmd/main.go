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

// Command manager is the operator.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"time"

	// Import all Kubernetes client auth plugins (e.g. Azure, GCP, OIDC, etc.)
	// to ensure that exec-entrypoint and run can make use of them.
	_ "k8s.io/client-go/plugin/pkg/client/auth"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	tailscalecomv1alpha1 "github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/apply"
	"github.com/tailnet-egress/egress-operator/internal/controller"
	"github.com/tailnet-egress/egress-operator/internal/observe"
	"github.com/tailnet-egress/egress-operator/internal/plan"
	"github.com/tailnet-egress/egress-operator/internal/tailnetapi"
	webhookv1 "github.com/tailnet-egress/egress-operator/internal/webhook/v1"
	"github.com/tailnet-egress/egress-operator/internal/webhookcert"
	// +kubebuilder:scaffold:imports
)

var (
	scheme   = runtime.NewScheme()
	setupLog = ctrl.Log.WithName("setup")
)

func init() {
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))

	utilruntime.Must(tailscalecomv1alpha1.AddToScheme(scheme))
	// +kubebuilder:scaffold:scheme
}

func main() {
	var metricsAddr string
	var metricsCertPath, metricsCertName, metricsCertKey string
	var webhookPort int
	var enableLeaderElection bool
	var probeAddr string
	var secureMetrics bool
	var own options
	flag.StringVar(&metricsAddr, "metrics-bind-address", "0", "The address the metrics endpoint binds to. "+
		"Use :8443 for HTTPS or :8080 for HTTP, or leave as 0 to disable the metrics service.")
	flag.StringVar(&probeAddr, "health-probe-bind-address", ":8081", "The address the probe endpoint binds to.")
	flag.BoolVar(&enableLeaderElection, "leader-elect", false,
		"Enable leader election for controller manager. "+
			"Enabling this will ensure there is only one active controller manager.")
	flag.BoolVar(&secureMetrics, "metrics-secure", true,
		"If set, the metrics endpoint is served securely via HTTPS. Use --metrics-secure=false to use HTTP instead.")
	flag.IntVar(&webhookPort, "webhook-port", 9443, "Port the webhook server listens on.")
	flag.StringVar(&metricsCertPath, "metrics-cert-path", "",
		"The directory that contains the metrics server certificate.")
	flag.StringVar(&metricsCertName, "metrics-cert-name", "tls.crt", "The name of the metrics server certificate file.")
	flag.StringVar(&metricsCertKey, "metrics-cert-key", "tls.key", "The name of the metrics server key file.")
	own.register(flag.CommandLine, os.Getenv)
	opts := zap.Options{}
	opts.BindFlags(flag.CommandLine)
	flag.Parse()
	if flag.NArg() > 0 {
		fail(fmt.Errorf("%q is not a flag: this program takes flags only", flag.Arg(0)))
	}
	if err := own.complete(os.ReadFile); err != nil {
		fail(err)
	}

	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&opts)))

	// The metrics and webhook servers speak HTTP/1.1 alone, which keeps them clear
	// of the HTTP/2 Stream Cancellation and Rapid Reset CVEs:
	// - https://github.com/advisories/GHSA-qppj-fm5r-hxr3
	// - https://github.com/advisories/GHSA-4374-p667-p6c8
	disableHTTP2 := func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }

	certificates := &webhookcert.Certificates{}
	webhookServer := webhook.NewServer(webhook.Options{
		Port:    webhookPort,
		TLSOpts: []func(*tls.Config){disableHTTP2, func(c *tls.Config) { c.GetCertificate = certificates.Get }},
	})

	// Metrics endpoint is enabled in 'config/default/kustomization.yaml'. The Metrics options configure the server.
	// More info:
	// - https://pkg.go.dev/sigs.k8s.io/controller-runtime@v0.25.0/pkg/metrics/server
	// - https://book.kubebuilder.io/reference/metrics.html
	metricsServerOptions := metricsserver.Options{
		BindAddress:   metricsAddr,
		SecureServing: secureMetrics,
		TLSOpts:       []func(*tls.Config){disableHTTP2},
	}

	if secureMetrics {
		// FilterProvider is used to protect the metrics endpoint with authn/authz.
		// These configurations ensure that only authorized users and service accounts
		// can access the metrics endpoint. The RBAC are configured in 'config/rbac/kustomization.yaml'. More info:
		// https://pkg.go.dev/sigs.k8s.io/controller-runtime@v0.25.0/pkg/metrics/filters#WithAuthenticationAndAuthorization
		metricsServerOptions.FilterProvider = filters.WithAuthenticationAndAuthorization
	}

	// If the certificate is not specified, controller-runtime will automatically
	// generate self-signed certificates for the metrics server.
	if len(metricsCertPath) > 0 {
		setupLog.Info("Initializing metrics certificate watcher using provided certificates",
			"metrics-cert-path", metricsCertPath, "metrics-cert-name", metricsCertName, "metrics-cert-key", metricsCertKey)

		metricsServerOptions.CertDir = metricsCertPath
		metricsServerOptions.CertName = metricsCertName
		metricsServerOptions.KeyName = metricsCertKey
	}

	ctx := ctrl.SetupSignalHandler()
	mgr, err := newManager(ctx, own.operatorNamespace, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsServerOptions,
		WebhookServer:          webhookServer,
		HealthProbeBindAddress: probeAddr,
		LeaderElection:         enableLeaderElection,
		LeaderElectionID:       leaseName,
		RenewDeadline:          new(renewDeadline),
		// The program ends when the manager does, so that its successor need not wait
		// for the lease to run out.
		LeaderElectionReleaseOnCancel: true,
		Cache:                         controller.ManagerCache(own.credentials()),
	})
	if err != nil {
		setupLog.Error(err, "Failed to start manager")
		os.Exit(1)
	}
	if err := addControllers(ctx, mgr, own, certificates); err != nil {
		setupLog.Error(err, "Failed to set up manager")
		os.Exit(1)
	}

	if err := mgr.AddHealthzCheck("healthz", healthz.Ping); err != nil {
		setupLog.Error(err, "Failed to set up health check")
		os.Exit(1)
	}
	if err := mgr.AddReadyzCheck("readyz", healthz.Ping); err != nil {
		setupLog.Error(err, "Failed to set up ready check")
		os.Exit(1)
	}

	setupLog.Info("Starting manager", "operator namespace", own.operatorNamespace, "cluster domain", own.clusterDomain)
	if err := mgr.Start(ctx); err != nil {
		setupLog.Error(err, "Failed to run manager")
		os.Exit(1)
	}
}

func newManager(ctx context.Context, namespace string, opts ctrl.Options) (ctrl.Manager, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	// API priority and fairness governs, and not a limit of the client's own.
	config.QPS = -1
	if err := waitForAPI(ctx, config); err != nil {
		return nil, fmt.Errorf("wait for the API server: %w", err)
	}
	if opts.LeaderElection {
		lock, err := podLock(config, namespace, os.Getenv("POD_NAME"))
		if err != nil {
			return nil, err
		}
		opts.LeaderElectionResourceLockInterface = lock
	}
	return ctrl.NewManager(config, opts)
}

// addControllers adds all that runs in the manager. The controllers wait for
// nothing of the webhook: traffic does not depend on it.
func addControllers(ctx context.Context, mgr ctrl.Manager, own options, certificates *webhookcert.Certificates) error {
	children, err := controller.NewChildren(mgr, own.operatorNamespace)
	if err != nil {
		return err
	}
	if err := (&controller.EgressTargetReconciler{
		Observer: observe.Observer{
			Targets:     mgr.GetClient(),
			Children:    children.GetCache(),
			Live:        mgr.GetAPIReader(),
			Keys:        tailnetapi.SecretKeys{Reader: mgr.GetClient(), Secret: own.credentials()},
			DefaultTags: own.tagList(),
			Settings:    own.settings(),
		},
		Applier:  apply.Applier{Client: mgr.GetClient(), FieldOwner: plan.FieldOwner, Sent: &apply.Sent{}},
		Recorder: mgr.GetEventRecorder("egress-operator"),
		Now:      time.Now,
	}).SetupWithManager(ctx, mgr, children); err != nil {
		return err
	}
	if err := controller.NewServiceReconciler(mgr, own.translation()).SetupWithManager(mgr); err != nil {
		return err
	}
	if os.Getenv("ENABLE_WEBHOOKS") != "false" {
		if err := webhookv1.SetupServiceWebhookWithManager(mgr, own.translation()); err != nil {
			return err
		}
		if err := certificates.Setup(mgr, children.GetCache(), own.certificates()); err != nil {
			return err
		}
		// It shakes hands with the webhook server, so it also waits for a certificate.
		if err := mgr.AddReadyzCheck("webhook", mgr.GetWebhookServer().StartedChecker()); err != nil {
			return fmt.Errorf("set up ready check: %w", err)
		}
	}
	// +kubebuilder:scaffold:builder
	return nil
}
