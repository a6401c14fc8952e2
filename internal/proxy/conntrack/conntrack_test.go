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

package conntrack_test

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	kernel "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"github.com/tailnet-egress/egress-operator/internal/proxy/conntrack"
	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/test/netlab"
)

const (
	translated  = kernel.StatusSrcNAT | kernel.StatusDstNAT | kernel.StatusSrcNATDone | kernel.StatusDstNATDone
	established = 3
	timeWait    = 7
)

type flow struct {
	protocol                uint8
	status                  kernel.Status
	client, pod, target, us string
	tcpState                uint8
}

// create puts a flow into the kernel as it would be after translation.
func create(t *testing.T, conn *kernel.Conn, f flow) {
	t.Helper()
	client, pod, target, us := netip.MustParseAddrPort(f.client), netip.MustParseAddrPort(f.pod),
		netip.MustParseAddrPort(f.target), netip.MustParseAddrPort(f.us)
	k := kernel.NewFlow(f.protocol, f.status|kernel.StatusConfirmed, client.Addr(), pod.Addr(), client.Port(), pod.Port(), 600, 0)
	k.TupleReply.IP = kernel.IPTuple{SourceAddress: target.Addr(), DestinationAddress: us.Addr()}
	k.TupleReply.Proto.SourcePort, k.TupleReply.Proto.DestinationPort = target.Port(), us.Port()
	if f.tcpState != 0 {
		k.ProtoInfo.TCP = &kernel.ProtoInfoTCP{State: f.tcpState}
	}
	if err := conn.Create(k); err != nil {
		t.Fatalf("creating %+v: %v", f, err)
	}
}

func TestDeleteAndCount(t *testing.T) {
	netlab.Require(t)
	if err := netlab.Remove("egrct"); err != nil {
		t.Fatal(err)
	}
	host, err := netlab.NewHost("egrct-pod")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	ns, err := os.Open("/run/netns/" + host.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	raw, err := kernel.Dial(&netlink.Config{NetNS: int(ns.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	table, err := conntrack.Open(conntrack.InNetNS(int(ns.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = table.Close() }()

	for _, f := range []flow{
		{unix.IPPROTO_TCP, translated, "10.0.0.7:40000", "10.0.0.5:5432", "100.64.0.9:15432", "100.64.0.1:40000", established},
		{unix.IPPROTO_TCP, translated, "10.0.0.7:40001", "10.0.0.5:5432", "100.64.0.9:15432", "100.64.0.1:40001", timeWait},
		{unix.IPPROTO_UDP, translated, "10.0.0.7:40002", "10.0.0.5:53", "100.64.0.9:53", "100.64.0.1:40002", 0},
		{unix.IPPROTO_TCP, translated, "[fd00::7]:40003", "[fd00::5]:5432", "[fd7a:115c:a1e0::9]:15432", "[fd7a:115c:a1e0::1]:40003", established},
		// Not ours: the Pod's own, and what somebody else redirects.
		{unix.IPPROTO_TCP, 0, "10.0.0.5:33333", "10.96.0.1:443", "10.96.0.1:443", "10.0.0.5:33333", established},
		{unix.IPPROTO_TCP, kernel.StatusDstNAT | kernel.StatusDstNATDone, "10.0.0.7:40004", "10.0.0.5:80", "10.0.0.5:15006", "10.0.0.7:40004", established},
	} {
		create(t, raw, f)
	}
	if active, err := table.Active(); err != nil || active != 2 {
		t.Errorf("%d flows are active, %v, want 2", active, err)
	}

	var asked []rules.Flow
	n, err := table.Delete(func(f rules.Flow) bool {
		asked = append(asked, f)
		return f.Protocol == unix.IPPROTO_UDP || f.To.Addr().Is6()
	})
	if err != nil || n != 2 {
		t.Errorf("deleted %d, %v, want 2", n, err)
	}
	if len(asked) != 4 {
		t.Errorf("asked about %v, want the four flows of ours", asked)
	}
	want := rules.Flow{
		Protocol: unix.IPPROTO_UDP, Port: 53,
		To: netip.MustParseAddrPort("100.64.0.9:53"), From: netip.MustParseAddr("100.64.0.1"),
	}
	if !slices.Contains(asked, want) {
		t.Errorf("asked about %v, want %v among them", asked, want)
	}
	left, err := raw.Dump(nil)
	if err != nil || len(left) != 4 {
		t.Errorf("%d flows are left, %v, want 4", len(left), err)
	}
}
