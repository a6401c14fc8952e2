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

package cluster

import "net/netip"

// Every address of the testbed that is not chosen at run time.
var (
	labNetwork     = netip.MustParsePrefix("172.29.0.0/24")
	machineAddr    = netip.MustParsePrefix("172.29.0.1/24")
	podNetwork     = netip.MustParsePrefix("10.244.0.0/16")
	serviceNetwork = netip.MustParsePrefix("10.96.0.0/16")
	kubernetesAddr = netip.MustParseAddr("10.96.0.1")
	dnsAddr        = netip.MustParseAddr("10.96.0.10")
)

const (
	apiServerPort = 6443
	// firstNode is the last byte of node 1's address; from 100 on addresses
	// belong to the tailnet.
	firstNode = 11
	maxNodes  = 89
)

// nodePrefix returns the lab address of node n, counted from 1.
func nodePrefix(n int) netip.Prefix {
	a := labNetwork.Addr().As4()
	a[3] = byte(firstNode + n - 1)
	return netip.PrefixFrom(netip.AddrFrom4(a), labNetwork.Bits())
}

// podPrefix returns the Pod network of node n, counted from 1.
func podPrefix(n int) netip.Prefix {
	a := podNetwork.Addr().As4()
	a[2] = byte(n)
	return netip.PrefixFrom(netip.AddrFrom4(a), 24)
}
