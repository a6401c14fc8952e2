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

package forwarding_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tailnet-egress/egress-operator/internal/proxy/forwarding"
	"github.com/tailnet-egress/egress-operator/test/netlab"
)

func namespace(t *testing.T) *netlab.Host {
	t.Helper()
	netlab.Require(t)
	if err := netlab.Remove("egrfwd"); err != nil {
		t.Fatal(err)
	}
	host, err := netlab.NewHost("egrfwd-pod")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	return host
}

func addVeth(name, peer string) error {
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer})
}

func read(key string) string {
	data, err := os.ReadFile("/proc/sys/net/" + key)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data))
}

func do(t *testing.T, host *netlab.Host, f func() error) {
	t.Helper()
	if err := host.Do(f); err != nil {
		t.Fatal(err)
	}
}

func TestEnableIPv4(t *testing.T) {
	host := namespace(t)
	do(t, host, func() error {
		if err := addVeth("eth0", "tailscale0"); err != nil {
			return err
		}
		if on, err := forwarding.IPv4Enabled(); err != nil || on {
			t.Errorf("before: %t, %v", on, err)
		}
		changed, err := forwarding.EnableIPv4()
		if err != nil {
			return err
		}
		slices.Sort(changed)
		if want := []string{"eth0", "tailscale0"}; !slices.Equal(changed, want) {
			t.Errorf("changed %v, want %v", changed, want)
		}
		for key, want := range map[string]string{
			"ipv4/conf/eth0/forwarding":       "1",
			"ipv4/conf/tailscale0/forwarding": "1",
			"ipv4/ip_forward":                 "0",
			"ipv4/conf/all/forwarding":        "0",
			"ipv4/conf/lo/forwarding":         "0",
		} {
			if got := read(key); got != want {
				t.Errorf("%s is %s, want %s", key, got, want)
			}
		}
		if on, err := forwarding.IPv4Enabled(); err != nil || !on {
			t.Errorf("after: %t, %v", on, err)
		}
		if changed, err := forwarding.EnableIPv4(); err != nil || len(changed) != 0 {
			t.Errorf("a second time changed %v, %v", changed, err)
		}
		return nil
	})
}

func TestStrictSourceCheckBecomesLoose(t *testing.T) {
	tests := map[string]struct{ all, own, want string }{
		"strict everywhere": {"1", "0", "2"},
		"strict here":       {"0", "1", "2"},
		"loose":             {"1", "2", "2"},
		"off":               {"0", "0", "0"},
		"loose everywhere":  {"2", "0", "0"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			host := namespace(t)
			do(t, host, func() error { return addVeth("eth0", "tailscale0") })
			for key, value := range map[string]string{"all": test.all, "eth0": test.own} {
				if err := host.Sysctl("net/ipv4/conf/"+key+"/rp_filter", value); err != nil {
					t.Fatal(err)
				}
			}
			do(t, host, func() error {
				if _, err := forwarding.EnableIPv4(); err != nil {
					return err
				}
				if got := read("ipv4/conf/eth0/rp_filter"); got != test.want {
					t.Errorf("rp_filter is %s, want %s", got, test.want)
				}
				return nil
			})
		})
	}
}

// An interface that is made anew forwards again within milliseconds.
func TestWatch(t *testing.T) {
	host := namespace(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var signals <-chan struct{}
	do(t, host, func() (err error) {
		signals, err = forwarding.Watch(ctx)
		return err
	})
	for round := range 3 {
		do(t, host, func() error { return addVeth("eth0", "tailscale0") })
		start := time.Now()
		for on := false; !on; {
			select {
			case <-signals:
			case <-time.After(time.Second):
				t.Fatalf("round %d: no signal", round)
			}
			do(t, host, func() error {
				if _, err := forwarding.EnableIPv4(); err != nil {
					return err
				}
				on = read("ipv4/conf/tailscale0/forwarding") == "1"
				return nil
			})
		}
		t.Logf("round %d: forwarding after %v", round, time.Since(start))
		do(t, host, func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkDel(link)
		})
	}
	cancel()
	deadline := time.After(time.Second)
	for {
		select {
		case _, open := <-signals:
			if !open {
				return
			}
		case <-deadline:
			t.Fatal("the channel stays open after the end of its context")
		}
	}
}

func TestIPv6Enabled(t *testing.T) {
	host := namespace(t)
	for _, value := range []string{"0", "1"} {
		if err := host.Sysctl("net/ipv6/conf/all/forwarding", value); err != nil {
			t.Fatal(err)
		}
		do(t, host, func() error {
			if on, err := forwarding.IPv6Enabled(); err != nil || on != (value == "1") {
				t.Errorf("with %s: %t, %v", value, on, err)
			}
			return nil
		})
	}
}
