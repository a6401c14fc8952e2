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

package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	// leaseName stays what kubebuilder's scaffold chose.
	leaseName = "7424df40.tailscale.com"
	// renewDeadline is how long a leader goes on without having renewed its lease.
	renewDeadline = 10 * time.Second
	// apiPoll is from one look for the API server to the next.
	apiPoll = time.Second
)

// waitForAPI returns once the API server answers. An operator that exited instead
// would be restarted at ever longer intervals, and be late when it is back.
func waitForAPI(ctx context.Context, config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.Timeout = 5 * time.Second
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	for said := false; ; {
		_, err := client.ServerVersion()
		if err == nil {
			return nil
		}
		if !said {
			setupLog.Info("Waited for the API server", "cause", err.Error())
			said = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(apiPoll):
		}
	}
}

// podLock is a lease held by a Pod rather than by a process, so that an operator
// whose container was restarted resumes at once instead of waiting for its own
// lease to run out; two containers of one Pod never run at a time. Without a Pod
// it is nil, for the default lock.
func podLock(config *rest.Config, namespace, pod string) (resourcelock.Interface, error) {
	if pod == "" {
		return nil, nil
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, namespace, leaseName,
		resourcelock.ResourceLockConfig{Identity: pod}, config, renewDeadline)
	if err != nil {
		return nil, fmt.Errorf("make the leader's lease: %w", err)
	}
	return lock, nil
}
