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

// Package e2e runs the product on a real cluster and a real tailnet.
package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/tailnet-egress/egress-operator/test/tailnet"
	"github.com/tailnet-egress/egress-operator/test/testbed"
)

// app is the namespace of the workloads.
const app = "app"

var (
	bed     *testbed.Bed
	clients []string
)

func TestE2E(t *testing.T) {
	if why := testbed.Missing(); why != "" {
		if os.Getenv("CI") != "" {
			t.Fatalf("CANNOT RUN IN CI: %s", why)
		}
		t.Skipf("SKIPPED, NOT TESTED HERE: %s", why)
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "egress-operator on a real cluster and a real tailnet")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	bed, err = testbed.Up(ctx, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	clients, err = bed.Clients(ctx, app)
	Expect(err).NotTo(HaveOccurred())
}, NodeTimeout(45*time.Minute))

var _ = AfterSuite(func() {
	if bed == nil {
		return
	}
	Expect(bed.Close()).To(Succeed())
	for _, path := range []string{testbed.StateDir, "/run/netns/egress-bridge"} {
		Expect(path).NotTo(BeAnExistingFile())
	}
})

var _ = ReportAfterEach(func(report SpecReport) {
	if !report.Failed() || bed == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, args := range []string{
		"get egt,service,endpointslice -A -o wide", "-n tailscale get pods,secret,configmap -o wide",
		"-n tailscale logs --tail=60 deployment/egress-operator-controller-manager", "get events -A",
		"-n tailscale logs --tail=40 --prefix --all-containers -l tailscale.com/managed=true",
	} {
		out, err := bed.Kubectl(ctx, "", strings.Fields(args)...)
		fmt.Printf("--- kubectl %s\n%s%v\n", args, out, err)
	}
})

// kubectl must succeed.
func kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := bed.Kubectl(ctx, "", args...)
	Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(out)
}

// query is a kubectl get with a JSONPath, "" where the object does not exist.
func query(ctx context.Context, namespace, object, path string) string {
	out, err := bed.Kubectl(ctx, "", "-n", namespace, "get", object, "--ignore-not-found", "-o", "jsonpath="+path)
	if err != nil {
		return "error: " + err.Error()
	}
	return out
}

func apply(ctx context.Context, manifests string) {
	GinkgoHelper()
	Expect(bed.Apply(ctx, manifests)).To(Succeed())
}

// service is an annotated ExternalName Service.
func service(name, key, value string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s, annotations: {%q: %q}}
spec: {type: ExternalName, externalName: placeholder}
---
`, name, app, key, value)
}

// target is an EgressTarget; spec is its spec in YAML flow style.
func target(name, spec string) string {
	return fmt.Sprintf(`
apiVersion: tailscale.com/v1alpha1
kind: EgressTarget
metadata: {name: %s, namespace: %s}
spec: %s
---
`, name, app, spec)
}

// condition is what a condition of an EgressTarget says, such as "True Ready".
func condition(ctx context.Context, name, kind string) string {
	path := fmt.Sprintf(`{range .status.conditions[?(@.type==%q)]}{.status} {.reason}{end}`, kind)
	return query(ctx, app, "egt/"+name, path)
}

func expectReady(ctx context.Context, names ...string) {
	GinkgoHelper()
	for _, name := range names {
		Eventually(condition).WithArguments(ctx, name, "Ready").WithTimeout(60*time.Second).WithPolling(200*time.Millisecond).
			Should(Equal("True Ready"), name)
	}
}

// remove deletes the objects and waits until they are gone.
func remove(ctx context.Context, objects ...string) {
	GinkgoHelper()
	kubectl(ctx, append([]string{"-n", app, "delete", "--ignore-not-found", "--timeout=60s"}, objects...)...)
}

// expectEcho dials from every client and wants the device's answer.
func expectEcho(ctx context.Context, device, network, address string) {
	GinkgoHelper()
	for _, pod := range clients {
		out, err := bed.Exec(ctx, app, pod, "dial", network, address)
		Expect(err).NotTo(HaveOccurred(), "%s %s from %s: %s", network, address, pod, out)
		Expect(out).To(ContainSubstring(" ok "+device+" ping 0"), "%s %s from %s", network, address, pod)
	}
}

func addDevice(ctx context.Context, name string) *tailnet.Device {
	GinkgoHelper()
	device, err := bed.Tailnet.AddDevice(ctx, name, tailnet.DeviceOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { _ = device.Remove(ctx) }, NodeTimeout(30*time.Second))
	return device
}

// proxyPod is the Pod that carries a target.
func proxyPod(ctx context.Context, name string) string {
	GinkgoHelper()
	pod := kubectl(ctx, "-n", testbed.Namespace, "get", "pods", "-l",
		"tailscale.com/parent-resource="+name+",tailscale.com/parent-resource-ns="+app, "-o", "jsonpath={.items[*].metadata.name}")
	Expect(strings.Fields(pod)).To(HaveLen(1))
	return pod
}

// identity changes with a Pod's replacement and with a container's restart.
func identity(ctx context.Context, pod string) string {
	return query(ctx, testbed.Namespace, "pod/"+pod,
		"{.metadata.uid}{range .status.containerStatuses[*]} {.restartCount}{end}{range .status.initContainerStatuses[*]} {.restartCount}{end}")
}
