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

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/test/tailnet"
	"github.com/tailnet-egress/egress-operator/test/testbed"
)

const operator = "deployment/egress-operator-controller-manager"

var _ = Describe("When something breaks", Ordered, func() {
	var device *tailnet.Device

	BeforeAll(func(ctx SpecContext) {
		var err error
		device, err = bed.Tailnet.AddDevice(ctx, "steady", tailnet.DeviceOptions{})
		Expect(err).NotTo(HaveOccurred())
		apply(ctx, service("steady", v1alpha1.AnnotationTailnetFQDN, device.FQDN())+
			target("direct", `{destination: {fqdn: `+device.FQDN()+`}, ports: [{port: 7}]}`))
		expectReady(ctx, "steady", "direct")
		expectEcho(ctx, "steady", "tcp", "steady:7")
	}, NodeTimeout(2*time.Minute))
	AfterAll(func(ctx SpecContext) {
		remove(ctx, "service/steady", "egt/direct")
		Expect(device.Remove(ctx)).To(Succeed())
	}, NodeTimeout(2*time.Minute))

	It("runs nothing privileged and leaves ip_forward off", func(ctx SpecContext) {
		Expect(kubectl(ctx, "-n", testbed.Namespace, "get", "pods", "-o",
			`jsonpath={range .items[*].spec.containers[*]}{.securityContext.privileged}{.securityContext.allowPrivilegeEscalation}{.securityContext.readOnlyRootFilesystem}{.securityContext.capabilities.drop}{" "}{end}{range .items[*].spec.initContainers[*]}{.securityContext.privileged}{.securityContext.allowPrivilegeEscalation}{.securityContext.readOnlyRootFilesystem}{.securityContext.capabilities.drop}{" "}{end}`)).
			To(MatchRegexp(`^((false)?falsetrue\["ALL"\] ?){5,}$`))
		pid := processOf("/usr/local/bin/egress-proxy", proxyPod(ctx, "steady"))
		for key, want := range map[string]string{"ip_forward": "0", "conf/eth0/forwarding": "1", "conf/tailscale0/forwarding": "1"} {
			Expect(inNetns(ctx, pid, "cat", "/proc/sys/net/ipv4/"+key)).To(Equal(want), key)
		}
	}, SpecTimeout(time.Minute))

	It("goes on while the operator is down, and follows a move meanwhile", func(ctx SpecContext) {
		kubectl(ctx, "-n", testbed.Namespace, "scale", "--replicas=0", operator)
		kubectl(ctx, "-n", testbed.Namespace, "wait", "--for=delete", "pod", "-l", "control-plane=controller-manager", "--timeout=60s")
		tries := start(ctx, "dial", "--count=80", "--interval=50ms", "--timeout=500ms", "tcp", "steady:7")
		time.Sleep(time.Second)
		changed, err := device.Recreate(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(firstOK(tries.attempts(ctx), changed).Sub(changed)).To(BeNumerically("<", time.Second))

		By("being served again by an operator that changes no child")
		versions := func() string {
			return kubectl(ctx, "-n", testbed.Namespace, "get", "statefulset,service,role,rolebinding,serviceaccount", "-l", "tailscale.com/managed=true",
				"-o", `jsonpath={range .items[*]}{.kind}{.metadata.name}{.metadata.resourceVersion}{" "}{end}`)
		}
		before := versions()
		kubectl(ctx, "-n", testbed.Namespace, "scale", "--replicas=1", operator)
		kubectl(ctx, "-n", testbed.Namespace, "rollout", "status", "--timeout=60s", operator)
		Eventually(query).WithArguments(ctx, app, "egt/steady", "{.status.destinationIPs[0]}").
			WithTimeout(30 * time.Second).Should(Equal(ipv4(device).String()))
		expectReady(ctx, "steady", "direct")
		Expect(versions()).To(Equal(before))
	}, SpecTimeout(3*time.Minute))

	It("goes on while the API server is down, and follows a move meanwhile", func(ctx SpecContext) {
		pod := proxyPod(ctx, "steady")
		pid, lookups := processOf("/usr/local/bin/egress-proxy", pod), clientIn(ctx)
		before := identity(ctx, pod)
		bed.Cluster.KillAPIServer()
		down := true
		DeferCleanup(func(ctx SpecContext) {
			if down {
				Expect(bed.Cluster.StartAPIServer(ctx)).To(Succeed())
			}
		}, NodeTimeout(time.Minute))
		_, err := device.Recreate(ctx)
		Expect(err).NotTo(HaveOccurred())
		for range 20 {
			// Without an API server there is no exec: enter the client's namespaces.
			out, err := lookups("dial", "--timeout=1s", "tcp", "steady."+app+".svc.cluster.local:7")
			Expect(err).NotTo(HaveOccurred(), out)
			time.Sleep(500 * time.Millisecond)
		}
		Expect(bed.Cluster.StartAPIServer(ctx)).To(Succeed())
		down = false
		expectReady(ctx, "steady", "direct")
		Expect(identity(ctx, pod)).To(Equal(before))
		Expect(processOf("/usr/local/bin/egress-proxy", pod)).To(Equal(pid))
		Eventually(query).WithArguments(ctx, app, "egt/steady", "{.status.destinationIPs[0]}").
			WithTimeout(30 * time.Second).Should(Equal(ipv4(device).String()))
	}, SpecTimeout(3*time.Minute))

	It("says that it is not ready when tailscaled is killed, and comes back", func(ctx SpecContext) {
		pod := proxyPod(ctx, "steady")
		Expect(syscall.Kill(processOf("/usr/local/bin/tailscaled", pod), syscall.SIGKILL)).To(Succeed())
		Eventually(condition).WithArguments(ctx, "steady", "Ready").WithTimeout(10 * time.Second).WithPolling(50 * time.Millisecond).
			Should(HavePrefix("False"))
		eventuallyEchoes(ctx, "steady", "steady:7", 30*time.Second)
		expectReady(ctx, "steady")
	}, SpecTimeout(2*time.Minute))

	It("puts back the kernel's rules", func(ctx SpecContext) {
		pid := processOf("/usr/local/bin/egress-proxy", proxyPod(ctx, "steady"))
		inNetns(ctx, pid, "nft", "delete", "table", "ip", "egress")
		eventuallyEchoes(ctx, "steady", "steady:7", 10*time.Second)
		Expect(inNetns(ctx, pid, "nft", "list", "ruleset")).To(ContainSubstring("table ip egress"))
	}, SpecTimeout(time.Minute))

	It("puts back each child (C05)", func(ctx SpecContext) {
		child := names.Child(app, "steady")
		pod := names.Pod(child, 0)
		for _, object := range []string{
			"endpointslice/" + names.Slice(child, "ipv4"), "service/" + child, "configmap/" + names.Ack(pod), "secret/" + pod,
			"role/" + child, "rolebinding/" + child, "statefulset/" + child, "serviceaccount/" + child,
		} {
			uid := query(ctx, testbed.Namespace, object, "{.metadata.uid}")
			Expect(uid).NotTo(BeEmpty(), object)
			kubectl(ctx, "-n", testbed.Namespace, "delete", "--wait=false", object)
			Eventually(query).WithArguments(ctx, testbed.Namespace, object, "{.metadata.uid}").
				WithTimeout(10*time.Second).WithPolling(100*time.Millisecond).ShouldNot(Or(BeEmpty(), Equal(uid)), object)
			deleted := time.Now()
			eventuallyEchoes(ctx, "steady", "steady:7", 40*time.Second)
			expectReady(ctx, "steady")
			GinkgoWriter.Printf("%s: traffic and Ready %s after it was put back\n", object, time.Since(deleted).Round(time.Millisecond))
		}
		By("hearing from the proxy after all that")
		_, err := device.Recreate(ctx)
		Expect(err).NotTo(HaveOccurred())
		Eventually(query).WithArguments(ctx, app, "egt/steady", "{.status.destinationIPs[0]}").
			WithTimeout(10 * time.Second).Should(Equal(ipv4(device).String()))
		By("putting back what was edited")
		kubectl(ctx, "-n", testbed.Namespace, "patch", "service/"+child, "--type=merge", "-p", `{"metadata":{"labels":{"tailscale.com/parent-resource":"other"}}}`)
		Eventually(query).WithArguments(ctx, testbed.Namespace, "service/"+child, `{.metadata.labels.tailscale\.com/parent-resource}`).
			WithTimeout(10 * time.Second).Should(Equal("steady"))
		expectReady(ctx, "steady")
	}, SpecTimeout(6*time.Minute))

	It("does not fight with GitOps (C04)", func(ctx SpecContext) {
		manifest := service("steady", v1alpha1.AnnotationTailnetFQDN, device.FQDN())
		const what = "{.metadata.generation} {.spec.externalName}"
		before := query(ctx, app, "service/steady", what)
		Expect(before).To(ContainSubstring(names.Child(app, "steady") + ".tailscale.svc.cluster.local"))
		tries := start(ctx, "dial", "--count=300", "--interval=50ms", "--timeout=1s", "tcp", "steady:7")
		for range 5 {
			_, err := bed.Kubectl(ctx, manifest, "apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-f", "-")
			Expect(err).NotTo(HaveOccurred())
			Expect(query(ctx, app, "service/steady", what)).To(Equal(before))
			time.Sleep(2 * time.Second)
		}
		Expect(failures(tries.attempts(ctx))).To(BeEmpty())
	}, SpecTimeout(2*time.Minute))
})

// processOf is the process of that program in a Pod, found by the environment
// that the Pod gives it.
func processOf(program, pod string) int {
	GinkgoHelper()
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	Expect(err).NotTo(HaveOccurred())
	for _, exe := range processes {
		if path, err := os.Readlink(exe); err != nil || path != program {
			continue
		}
		environ, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "environ"))
		if err != nil || !bytes.Contains(environ, []byte("POD_NAME="+pod+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(exe)))
		Expect(err).NotTo(HaveOccurred())
		return pid
	}
	Fail(fmt.Sprintf("no %s runs in %s", program, pod))
	return 0
}

// inNetns runs a program of this machine in a process's network namespace.
func inNetns(ctx context.Context, pid int, args ...string) string {
	GinkgoHelper()
	out, err := exec.CommandContext(ctx, "nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", pid)}, args...)...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	return strings.TrimSpace(string(out))
}

// clientIn runs the test Pod's program inside a client's namespaces without
// asking the API server.
func clientIn(ctx context.Context) func(args ...string) (string, error) {
	GinkgoHelper()
	ip := query(ctx, app, "pod/"+clients[0], "{.status.podIP}")
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	Expect(err).NotTo(HaveOccurred())
	for _, exe := range processes {
		if path, err := os.Readlink(exe); err != nil || path != "/testpod" {
			continue
		}
		pid := filepath.Base(filepath.Dir(exe))
		addrs, err := exec.CommandContext(ctx, "nsenter", "--net=/proc/"+pid+"/ns/net", "ip", "-br", "addr").CombinedOutput()
		if err != nil || !strings.Contains(string(addrs), ip+"/") {
			continue
		}
		return func(args ...string) (string, error) {
			out, err := exec.CommandContext(ctx, "nsenter", append([]string{"--target=" + pid, "--mount", "--net", "--", "/testpod"}, args...)...).CombinedOutput()
			return string(out), err
		}
	}
	Fail("no client runs at " + ip)
	return nil
}
