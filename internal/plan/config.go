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

package plan

import (
	"cmp"
	"encoding/json"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

// tailnetPrefixes hold every device and Service of a tailnet; an address outside
// them is behind a subnet router.
var tailnetPrefixes = []netip.Prefix{
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("fd7a:115c:a1e0::/48"),
}

// viaPrefix is the part of the tailnet's prefixes that stands for IPv4 subnets
// behind subnet routers (4via6, tailscale.com/net/tsaddr).
var viaPrefix = netip.MustParsePrefix("fd7a:115c:a1e0:b1a::/64")

// tailscaledConfig is the part of tailscaled's config file, format alpha0, that
// we set (tailscale.com/ipn, type ConfigVAlpha).
type tailscaledConfig struct {
	Version       string
	Locked        bool
	ServerURL     string `json:",omitempty"`
	AuthKey       string `json:",omitempty"`
	Hostname      string
	AcceptDNS     bool `json:"acceptDNS"`
	AcceptRoutes  bool `json:"acceptRoutes"`
	ShieldsUp     bool
	NetfilterMode string
}

func (p *pass) secret() *corev1.Secret {
	secret, ok := find[*corev1.Secret](p.Children, p.Settings.OperatorNamespace, p.pod)
	if !ok {
		return nil
	}
	return secret
}

// readAck is what the Pod of that name last acknowledged, whichever Pod it was.
func (p *pass) readAck() *proxyconfig.Ack {
	object, ok := find[*corev1.ConfigMap](p.Children, p.Settings.OperatorNamespace, p.ackName)
	if !ok {
		return nil
	}
	ack, err := proxyconfig.DecodeAck([]byte(object.Data[proxyconfig.AckKey]))
	if err != nil {
		return nil
	}
	return &ack
}

// Hostname is the device name of a standalone target.
func Hostname(target *v1alpha1.EgressTarget) string {
	return cmp.Or(target.Spec.Hostname, names.Hostname(target.Namespace, target.Name))
}

func (p *pass) acceptRoutes() bool {
	ip := p.proxy.Destination.IP
	if !ip.IsValid() || viaPrefix.Contains(ip) {
		return ip.IsValid()
	}
	for _, prefix := range tailnetPrefixes {
		if prefix.Contains(ip) {
			return false
		}
	}
	return true
}

// config is the proxy's config and whether it replaces another. Its generation is
// above every one that the proxy may have seen, also where the Secret was lost.
func (p *pass) config() (data []byte, replaces bool) {
	config := proxyconfig.Config{AcceptRoutes: p.acceptRoutes(), Hostname: Hostname(p.Target), Targets: []proxyconfig.Target{p.proxy}}
	seen := int64(0)
	if p.ack != nil {
		seen = max(seen, p.ack.ConfigGeneration)
	}
	if secret := p.secret(); secret != nil {
		if previous, _, err := proxyconfig.Decode(secret.Data[proxyconfig.ConfigKey]); err == nil {
			config.Generation = previous.Generation
			// A proxy that knows a later generation, from before Secret and
			// acknowledgement were both lost, would ignore this one.
			replaces = !config.SameContent(previous) || seen > previous.Generation
			seen = max(seen, previous.Generation)
		}
	}
	if config.Generation == 0 || replaces {
		config.Generation = seen + 1
	}
	// accept has encoded the target already, and the rest is small.
	data, err := config.Encode()
	if err != nil {
		panic(err)
	}
	return data, replaces
}

// tailscaled is tailscaled's config. It holds the key only until the device can
// log in without.
func (p *pass) tailscaled() []byte {
	config := tailscaledConfig{
		Version: "alpha0", ServerURL: p.Settings.LoginServer, Hostname: Hostname(p.Target),
		AcceptRoutes: p.acceptRoutes(), ShieldsUp: true, NetfilterMode: "off",
	}
	if !Registered(p.secret()) {
		config.AuthKey = p.AuthKey
	}
	data, err := json.Marshal(config)
	if err != nil {
		// Strings and booleans always encode.
		panic(err)
	}
	return data
}
