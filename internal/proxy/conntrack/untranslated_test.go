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
	"testing"

	"github.com/tailnet-egress/egress-operator/internal/proxy/conntrack"
	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
)

func TestDeleteUntranslated(t *testing.T) {
	host := namespace(t)
	ns, err := os.Open("/run/netns/" + host.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	table, err := conntrack.Open(conntrack.InNetNS(int(ns.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = table.Close() }()
	for _, port := range []string{"9000", "41641"} {
		packets, err := host.ListenPacket("udp", "10.9.9.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = packets.Close() }()
	}
	connect(t, host, "udp", "10.9.9.1:9000")  // Stuck.
	connect(t, host, "udp", "10.9.9.1:41641") // tailscaled's.
	connect(t, host, "udp", "10.9.9.1:5432")  // Translated.
	connect(t, host, "udp", "10.9.9.2:9000")  // Not to the Pod.
	served := func(protocol uint8, port uint16) bool { return protocol == rules.UDP && port == 41641 }
	for _, want := range []int{1, 0} {
		if n, err := table.DeleteUntranslated([]netip.Addr{netip.MustParseAddr("10.9.9.1")}, served); err != nil || n != want {
			t.Errorf("deleted %d, %v, want %d", n, err, want)
		}
	}
	if n, err := table.Delete(func(rules.Flow) bool { return true }); err != nil || n != 1 {
		t.Errorf("%d translated flows were left, %v, want 1", n, err)
	}
}
