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
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailnet-egress/egress-operator/internal/proxy/conntrack"
	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
	"github.com/tailnet-egress/egress-operator/test/netlab"
)

// Within one namespace 10.9.9.1 stands for the Pod, .2 for the target and .3 for
// the Pod's address on the tailnet.
const translation = `
table ip nat {
	chain output {
		type nat hook output priority -100;
		ip daddr 10.9.9.1 meta l4proto { tcp, udp } th dport 5432 ct mark set 1 dnat to 10.9.9.2:15432
		ip daddr 10.9.9.1 tcp dport 80 dnat to 10.9.9.2:15432
	}
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ct mark 1 snat to 10.9.9.3
	}
}
`

func namespace(t *testing.T) *netlab.Host {
	t.Helper()
	netlab.Require(t)
	if _, err := exec.LookPath("nft"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("CANNOT RUN IN CI: the program nft is not installed")
		}
		t.Skip("SKIPPED, NOT TESTED HERE: the program nft is not installed")
	}
	if err := netlab.Remove("egrct"); err != nil {
		t.Fatal(err)
	}
	host, err := netlab.NewHost("egrct-pod")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	for i := range 3 {
		run(t, host, "", "ip", "addr", "add", fmt.Sprintf("10.9.9.%d/32", i+1), "dev", "lo")
	}
	run(t, host, translation, "nft", "-f", "-")
	return host
}

func run(t *testing.T, host *netlab.Host, stdin, name string, args ...string) {
	t.Helper()
	command := host.Command(t.Context(), name, args...)
	command.Stdin = strings.NewReader(stdin)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v %s", name, args, err, out)
	}
}

func connect(t *testing.T, host *netlab.Host, network, address string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	conn, err := host.Dial(ctx, network, address)
	if err == nil {
		_, err = conn.Write([]byte("hello"))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestDeleteAndCount(t *testing.T) {
	host := namespace(t)
	listener, err := host.Listen("tcp", "10.9.9.2:15432")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
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

	connect(t, host, "tcp", "10.9.9.1:5432")
	ended := connect(t, host, "tcp", "10.9.9.1:5432")
	connect(t, host, "udp", "10.9.9.1:5432")
	// Neither what somebody else redirects nor what nobody translates is ours.
	connect(t, host, "tcp", "10.9.9.1:80")
	connect(t, host, "tcp", "10.9.9.2:15432")
	if active, err := table.Active(); err != nil || active != 2 {
		t.Errorf("%d flows are active, %v, want 2", active, err)
	}
	// A reset ends it at once.
	if err := ended.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	_ = ended.Close()
	if active, err := table.Active(); err != nil || active != 1 {
		t.Errorf("%d flows are active after one ended, %v, want 1", active, err)
	}

	var asked []rules.Flow
	onlyUDP := func(f rules.Flow) bool {
		asked = append(asked, f)
		return f.Protocol == rules.UDP
	}
	if n, err := table.Delete(onlyUDP); err != nil || n != 1 {
		t.Errorf("deleted %d, %v, want 1", n, err)
	}
	want := rules.Flow{
		Protocol: rules.UDP, Port: 5432,
		To: netip.MustParseAddrPort("10.9.9.2:15432"), From: netip.MustParseAddr("10.9.9.3"),
	}
	if len(asked) != 3 || !slices.Contains(asked, want) {
		t.Errorf("asked about %v, want three flows of ours with %v among them", asked, want)
	}
	asked = nil
	if n, err := table.Delete(onlyUDP); err != nil || n != 0 || len(asked) != 2 {
		t.Errorf("deleted %d, %v of %v, want none of two", n, err, asked)
	}
}
