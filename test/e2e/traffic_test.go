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
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/test/tailnet"
)

var _ = Describe("Traffic", func() {
	It("reaches a device by every way in, over TCP and UDP, from each node", func(ctx SpecContext) {
		device := addDevice(ctx, "db")
		apply(ctx, service("by-fqdn", v1alpha1.AnnotationTailnetFQDN, "DB."+bed.Tailnet.Domain()+".")+
			service("by-ip", v1alpha1.AnnotationTailnetTargetIP, ipv4(device).String())+
			target("typed-fqdn", `{destination: {fqdn: `+device.FQDN()+`}, ports: [{name: a, port: 5432, targetPort: 7}, {name: b, port: 5432, targetPort: 7, protocol: UDP}]}`)+
			target("typed-ip", `{destination: {ip: "`+ipv4(device).String()+`"}}`))
		names := []string{"by-fqdn", "by-ip", "typed-fqdn", "typed-ip"}
		expectReady(ctx, names...)
		for _, network := range []string{"tcp", "udp"} {
			expectEcho(ctx, "db", network, "by-fqdn:7")
			expectEcho(ctx, "db", network, "by-ip:7")
			expectEcho(ctx, "db", network, "typed-fqdn:5432")
			expectEcho(ctx, "db", network, "typed-ip:7")
			expectEcho(ctx, "db", network, "typed-fqdn."+app+".svc.cluster.local:5432")
		}
		By("refusing, at once, a port that a target does not list")
		out, err := bed.Exec(ctx, app, clients[0], "dial", "--timeout=5s", "tcp", "typed-fqdn:7")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("connection refused"))

		By("telling so on the Services and the targets")
		Expect(query(ctx, app, "service/by-fqdn", `{.status.conditions[?(@.type=="TailscaleProxyReady")].status}`)).To(Equal("True"))
		table := kubectl(ctx, "-n", app, "get", "egt", "typed-fqdn", "-o", "wide")
		Expect(table).To(ContainSubstring(device.FQDN()))
		Expect(table).To(ContainSubstring("1/1"))
		Expect(table).To(ContainSubstring(ipv4(device).String()))

		By("leaving the key in no proxy's Secret")
		secrets := kubectl(ctx, "-n", "tailscale", "get", "secret", "-l", "tailscale.com/parent-resource-type=egresstarget", "-o",
			`go-template={{range .items}}{{index .data "tailscaled.json" | base64decode}}{{"\n"}}{{end}}`)
		Expect(strings.Count(secrets, "ServerURL")).To(Equal(len(names)))
		Expect(secrets).NotTo(ContainSubstring(bed.Tailnet.AuthKey()))

		remove(ctx, "service/by-fqdn", "service/by-ip", "egt/typed-fqdn", "egt/typed-ip")
	}, SpecTimeout(4*time.Minute))

	It("follows a device that is re-created with another address, three times (C01)", func(ctx SpecContext) {
		device := addDevice(ctx, "moves")
		apply(ctx, service("moves", v1alpha1.AnnotationTailnetFQDN, device.FQDN()))
		expectReady(ctx, "moves")
		expectEcho(ctx, "moves", "tcp", "moves:7")
		pod := proxyPod(ctx, "moves")
		before := identity(ctx, pod)
		for round := range 3 {
			if round == 2 {
				Expect(device.Reconnect(ctx)).To(Succeed())
			}
			old := ipv4(device)
			tcp := start(ctx, "dial", "--count=120", "--interval=50ms", "--timeout=500ms", "tcp", "moves:7")
			udp := start(ctx, "flow", "--count=300", "--interval=20ms", "udp", "moves:7")
			time.Sleep(time.Second)
			changed, err := device.Recreate(ctx)
			Expect(err).NotTo(HaveOccurred())
			Expect(ipv4(device)).NotTo(Equal(old))

			// The old machine is gone, so whatever answers is the new one.
			connections, flow := tcp.attempts(ctx), udp.attempts(ctx)
			tcpAfter := firstOK(connections, changed).Sub(changed)
			udpAfter := firstOK(flow, changed).Sub(changed)
			GinkgoWriter.Printf("round %d: a new connection after %s, the UDP flow after %s\n", round, tcpAfter, udpAfter)
			Expect(tcpAfter).To(BeNumerically("<", time.Second))
			Expect(udpAfter).To(BeNumerically("<", time.Second))
			for _, a := range connections {
				if a.at.After(changed.Add(time.Second)) {
					Expect(a.ok).To(BeTrue(), "a connection a second after the move failed: %v", a)
				}
			}
			Eventually(query).WithArguments(ctx, app, "egt/moves", "{.status.destinationIPs[0]}").
				WithTimeout(5 * time.Second).Should(Equal(ipv4(device).String()))
		}
		Expect(identity(ctx, pod)).To(Equal(before), "the proxy was restarted")
		remove(ctx, "service/moves")
	}, SpecTimeout(3*time.Minute))

	It("refuses a target that does not exist, and works when it appears, beside a good one (C02)", func(ctx SpecContext) {
		good := addDevice(ctx, "good")
		apply(ctx, service("good", v1alpha1.AnnotationTailnetFQDN, good.FQDN())+
			service("later", v1alpha1.AnnotationTailnetFQDN, "later."+bed.Tailnet.Domain())+
			service("never", v1alpha1.AnnotationTailnetFQDN, "never."+bed.Tailnet.Domain()))
		expectReady(ctx, "good")
		for _, name := range []string{"later", "never"} {
			Eventually(condition).WithArguments(ctx, name, "Resolved").WithTimeout(60 * time.Second).Should(Equal("False TargetNotFound"))
			Eventually(condition).WithArguments(ctx, name, "Ready").WithTimeout(5 * time.Second).Should(Equal("False TargetNotFound"))
		}
		refused := start(ctx, "dial", "--count=5", "--timeout=3s", "tcp", "later:7").attempts(ctx)
		refused = append(refused, start(ctx, "dial", "--count=5", "--timeout=3s", "udp", "later:7").attempts(ctx)...)
		for _, a := range refused {
			Expect(a.ok).To(BeFalse())
			Expect(a.got).To(ContainSubstring("connection refused"))
			Expect(a.took).To(BeNumerically("<", 500*time.Millisecond))
		}
		Expect(kubectl(ctx, "-n", app, "get", "events", "--field-selector", "type=Warning")).To(ContainSubstring("TargetNotFound"))

		goodOnes := start(ctx, "dial", "--count=150", "--interval=50ms", "--timeout=1s", "tcp", "good:7")
		late := start(ctx, "dial", "--count=150", "--interval=50ms", "--timeout=500ms", "tcp", "later:7")
		addDevice(ctx, "later")
		joined := time.Now()
		lateOnes := late.attempts(ctx)
		after := firstOK(lateOnes, joined).Sub(joined)
		GinkgoWriter.Printf("the late target worked %s after its device was up\n", after)
		Expect(after).To(BeNumerically("<", time.Second))
		Eventually(condition).WithArguments(ctx, "later", "Ready").WithTimeout(5 * time.Second).Should(Equal("True Ready"))
		Expect(failures(goodOnes.attempts(ctx))).To(BeEmpty(), "the good target was disturbed")

		remove(ctx, "service/good", "service/later", "service/never")
	}, SpecTimeout(3*time.Minute))

	It("reaches a host behind a subnet router, even when the Pod network is advertised too", func(ctx SpecContext) {
		router := addDevice(ctx, "router")
		apply(ctx, target("warehouse", `{destination: {ip: 192.168.77.10}, ports: [{name: a, port: 5432, targetPort: 7}, {name: b, port: 5432, targetPort: 7, protocol: UDP}]}`))
		Eventually(condition).WithArguments(ctx, "warehouse", "Resolved").WithTimeout(60 * time.Second).Should(Equal("False NoRouteToTarget"))

		_, err := router.AddSubnetHost("warehouse", netip.MustParsePrefix("192.168.77.10/24"))
		Expect(err).NotTo(HaveOccurred())
		Expect(router.AdvertiseRoutes(ctx, netip.MustParsePrefix("192.168.77.0/24"))).To(Succeed())
		expectReady(ctx, "warehouse")
		expectEcho(ctx, "warehouse", "tcp", "warehouse:5432")
		expectEcho(ctx, "warehouse", "udp", "warehouse:5432")

		By("advertising the Pod network itself")
		Expect(router.AdvertiseRoutes(ctx, netip.MustParsePrefix("192.168.77.0/24"), netip.MustParsePrefix("10.244.0.0/16"))).To(Succeed())
		Consistently(func(g Gomega) {
			for _, pod := range clients {
				out, err := bed.Exec(ctx, app, pod, "dial", "tcp", "warehouse:5432")
				g.Expect(err).NotTo(HaveOccurred(), out)
			}
		}).WithTimeout(5 * time.Second).Should(Succeed())
		expectReady(ctx, "warehouse")
		remove(ctx, "egt/warehouse")
	}, SpecTimeout(3*time.Minute))

	It("moves big files both ways (C07)", func(ctx SpecContext) {
		device := addDevice(ctx, "files")
		apply(ctx, service("files", v1alpha1.AnnotationTailnetFQDN, device.FQDN()))
		expectReady(ctx, "files")
		for _, args := range [][]string{
			{"get", "--timeout=60s", "http://files/bytes/50000000"}, {"put", "--timeout=60s", "50000000", "http://files/upload"},
		} {
			out, err := bed.Exec(ctx, app, clients[0], args...)
			Expect(err).NotTo(HaveOccurred(), out)
			Expect(out).To(ContainSubstring("50000000"))
			GinkgoWriter.Print(args[0], " ", out)
		}
		remove(ctx, "service/files")
	}, SpecTimeout(3*time.Minute))

	It("changes ports without a restart (C09)", func(ctx SpecContext) {
		device := addDevice(ctx, "ports")
		spec := func(ports string) string {
			return target("ports", `{destination: {fqdn: `+device.FQDN()+`}, ports: [`+ports+`]}`)
		}
		apply(ctx, spec(`{port: 7}`))
		expectReady(ctx, "ports")
		expectEcho(ctx, "ports", "tcp", "ports:7")
		before := identity(ctx, proxyPod(ctx, "ports"))
		edits := []struct{ ports, network, dial string }{
			{`{name: one, port: 7}, {name: two, port: 80}`, "tcp", "ports:7"},
			{`{name: one, port: 15432, targetPort: 7}`, "tcp", "ports:15432"},
			{`{name: t, port: 53, targetPort: 7}, {name: u, port: 53, targetPort: 7, protocol: UDP}`, "udp", "ports:53"},
		}
		for _, edit := range edits {
			apply(ctx, spec(edit.ports))
			edited := time.Now()
			tries := start(ctx, "dial", "--count=40", "--interval=50ms", "--timeout=500ms", edit.network, edit.dial).attempts(ctx)
			Expect(firstOK(tries, edited).Sub(edited)).To(BeNumerically("<", 2*time.Second), edit.ports)
		}
		err := bed.Apply(ctx, spec(`{port: 9002}`))
		Expect(err).To(MatchError(ContainSubstring("9002/TCP and 41641/UDP are used by a standalone proxy itself")))
		expectEcho(ctx, "ports", "udp", "ports:53")
		Expect(identity(ctx, proxyPod(ctx, "ports"))).To(Equal(before), "the proxy was restarted")
		remove(ctx, "egt/ports")
	}, SpecTimeout(3*time.Minute))
})

func ipv4(device *tailnet.Device) netip.Addr {
	GinkgoHelper()
	for _, addr := range device.IPs() {
		if addr.Is4() {
			return addr
		}
	}
	Fail("the device has no IPv4 address")
	return netip.Addr{}
}

// eventuallyEchoes dials until the device answers, and says how long that took.
func eventuallyEchoes(ctx context.Context, device, address string, within time.Duration) {
	GinkgoHelper()
	Eventually(func() (string, error) {
		return bed.Exec(ctx, app, clients[0], "dial", "--timeout=1s", "tcp", address)
	}).WithTimeout(within).WithPolling(100 * time.Millisecond).Should(ContainSubstring(" ok " + device + " ping 0"))
}
