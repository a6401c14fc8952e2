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
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/test/testbed"
)

var _ = Describe("Lifecycle", func() {
	It("leaves nothing in the cluster, even when the proxy's device is already gone (C11)", func(ctx SpecContext) {
		device := addDevice(ctx, "ends")
		apply(ctx, service("ends", v1alpha1.AnnotationTailnetFQDN, device.FQDN())+
			target("ends-too", `{destination: {fqdn: `+device.FQDN()+`}, serviceName: renamed}`))
		expectReady(ctx, "ends", "ends-too")
		expectEcho(ctx, "ends", "tcp", "renamed:7")

		By("deleting the proxies' devices by hand")
		for _, node := range bed.Tailnet.Control().Nodes() {
			if strings.HasPrefix(node.FQDN, app+"-ends") {
				Expect(bed.Tailnet.Control().Delete(node.ID)).To(Succeed())
			}
		}
		started := time.Now()
		remove(ctx, "service/ends", "egt/ends-too")
		Eventually(leftovers).WithArguments(ctx, "ends").WithTimeout(60*time.Second - time.Since(started)).Should(BeEmpty())
		Expect(query(ctx, app, "service/renamed", "{.metadata.name}")).To(BeEmpty())
		Expect(query(ctx, app, "egt/ends", "{.metadata.name}")).To(BeEmpty())
	}, SpecTimeout(3*time.Minute))

	It("removes what was made when the annotation is removed", func(ctx SpecContext) {
		apply(ctx, service("plain", v1alpha1.AnnotationTailnetFQDN, "plain."+bed.Tailnet.Domain()))
		Eventually(condition).WithArguments(ctx, "plain", "Resolved").WithTimeout(60 * time.Second).Should(Equal("False TargetNotFound"))
		kubectl(ctx, "-n", app, "annotate", "service/plain", v1alpha1.AnnotationTailnetFQDN+"-")
		Eventually(leftovers).WithArguments(ctx, "plain").WithTimeout(60 * time.Second).Should(BeEmpty())
		Eventually(query).WithArguments(ctx, app, "egt/plain", "{.metadata.name}").WithTimeout(10 * time.Second).Should(BeEmpty())
		Eventually(query).WithArguments(ctx, app, "service/plain", "{.status.conditions}").WithTimeout(10 * time.Second).Should(BeEmpty())
		Expect(query(ctx, app, "service/plain", "{.metadata.name}")).To(Equal("plain"))
		remove(ctx, "service/plain")
	}, SpecTimeout(3*time.Minute))

	It("makes nothing for a Service that a later admission policy refuses", func(ctx SpecContext) {
		apply(ctx, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-outside}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [services]}]
  validations: [{expression: "object.metadata.name != 'outside'", message: "the Service outside is not allowed"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-outside}
spec: {policyName: no-outside, validationActions: [Deny]}
`)
		DeferCleanup(func(ctx SpecContext) {
			kubectl(ctx, "delete", "validatingadmissionpolicy/no-outside", "validatingadmissionpolicybinding/no-outside")
		}, NodeTimeout(time.Minute))
		Eventually(func() error {
			err := bed.Apply(ctx, service("outside", v1alpha1.AnnotationTailnetFQDN, "db."+bed.Tailnet.Domain()))
			if err == nil {
				remove(ctx, "service/outside")
			}
			return err
		}).WithTimeout(30 * time.Second).WithPolling(time.Second).Should(MatchError(ContainSubstring("the Service outside is not allowed")))
		Consistently(query).WithArguments(ctx, app, "egt/outside", "{.metadata.name}").WithTimeout(3 * time.Second).Should(BeEmpty())
	}, SpecTimeout(time.Minute))

	It("answers bad input with a sentence and changes nothing", func(ctx SpecContext) {
		before := kubectl(ctx, "get", "egt", "-A", "-o", "name")
		for manifest, sentence := range map[string]string{
			service("bad", v1alpha1.AnnotationTailnetFQDN, "nolabel"):          `invalid value of annotation tailscale.com/tailnet-fqdn: "nolabel" does not appear to be a valid MagicDNS name`,
			service("bad", v1alpha1.AnnotationTailnetTargetIP, "100.64.0"):     `invalid value of annotation tailscale.com/tailnet-target-ip: "100.64.0" could not be parsed as a valid IP Address`,
			service("bad", v1alpha1.AnnotationTailnetIP, "127.0.0.1"):          `127.0.0.1`,
			target("bad", `{destination: {ip: 127.0.0.1}}`):                    `"127.0.0.1" cannot be a target`,
			target("bad", `{destination: {}}`):                                 `spec.destination`,
			target("bad", `{destination: {fqdn: a.b.c}, proxyGroup: g}`):       `spec.ports is required with spec.proxyGroup`,
			target("bad", `{destination: {fqdn: a.b.c, ip: 100.64.0.1}}`):      `exactly one of fqdn and ip`,
			target("bad", `{destination: {fqdn: a.b.c}, ports: [{port: 0}]}`):  `spec.ports[0].port`,
			target("bad", `{destination: {fqdn: a.b.c}, tags: ["tag:1nope"]}`): `invalid tag "tag:1nope"`,
		} {
			Expect(bed.Apply(ctx, manifest)).To(MatchError(ContainSubstring(sentence)), manifest)
		}
		Expect(query(ctx, app, "service/bad", "{.metadata.name}")).To(BeEmpty())
		Expect(kubectl(ctx, "get", "egt", "-A", "-o", "name")).To(Equal(before))
	}, SpecTimeout(time.Minute))

	It("is accepted whole by a strict API server", func(ctx SpecContext) {
		for _, dir := range []string{"config/default", "config/overlays/testbed", "config/overlays/webhook-fail"} {
			_, err := bed.Kubectl(ctx, "", "apply", "--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts", "-k", fmt.Sprintf("%s/%s", bed.Root(), dir))
			Expect(err).NotTo(HaveOccurred(), dir)
		}
		_, err := bed.Kubectl(ctx, "", "-n", app, "apply", "--dry-run=server", "--validate=strict", "-k", bed.Root()+"/config/samples")
		Expect(err).NotTo(HaveOccurred())
	}, SpecTimeout(time.Minute))
})

// leftovers lists what is still there of targets whose name begins so.
func leftovers(ctx context.Context, prefix string) (out []string) {
	all, err := bed.Kubectl(ctx, "", "-n", testbed.Namespace, "get",
		"statefulset,pod,service,endpointslice,secret,configmap,serviceaccount,role,rolebinding", "-o", "name")
	if err != nil {
		return []string{err.Error()}
	}
	for name := range strings.Lines(all) {
		if strings.Contains(name, "/ts-"+prefix+"-") {
			out = append(out, strings.TrimSpace(name))
		}
	}
	return out
}
