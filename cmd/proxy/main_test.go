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

package main

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailnet-egress/egress-operator/internal/proxy/object"
)

func environment(values map[string]string) func(string) string {
	return func(key string) string { return values[key] }
}

var pod = map[string]string{"POD_NAMESPACE": "tailscale", "POD_UID": "uid", "POD_IPS": "10.244.0.5,fd00::5"}

func TestParse(t *testing.T) {
	o, err := parse([]string{
		"--config=/c/egress-config.json", "--config-object=secret/ts-db-0", "--ack=ts-db-0-ack", "--secret=ts-db-0",
		"--socket=/s/tailscaled.sock", "--health-address=:9002", "--tailscaled-port=41641", "--drain-cap=7s",
	}, environment(pod))
	if err != nil {
		t.Fatal(err)
	}
	if o.ConfigFile != "/c/egress-config.json" || o.ConfigObject != (object.Ref{Kind: object.Secret, Name: "ts-db-0"}) || o.AckName != "ts-db-0-ack" ||
		o.SecretName != "ts-db-0" || o.Socket != "/s/tailscaled.sock" || o.HealthAddress != ":9002" || o.TailscaledPort != 41641 ||
		o.DrainCap != 7*time.Second || o.PodUID != "uid" || o.Namespace != "tailscale" ||
		!slices.Equal(o.PodIPs, []netip.Addr{netip.MustParseAddr("10.244.0.5"), netip.MustParseAddr("fd00::5")}) {
		t.Errorf("%+v", o)
	}
}

func TestParseRefuses(t *testing.T) {
	cases := map[string]struct {
		args []string
		env  map[string]string
		want string
	}{
		"an argument":        {[]string{"now"}, pod, `unexpected argument "now"`},
		"a kind of object":   {[]string{"--config-object=pod/x"}, pod, "--config-object: object \"pod/x\" must be secret/<name> or configmap/<name>"},
		"an unknown flag":    {[]string{"--nothing"}, pod, "unknown flag: --nothing"},
		"no namespace":       {nil, map[string]string{"POD_IPS": "10.0.0.1"}, "POD_NAMESPACE is not set"},
		"no addresses":       {nil, map[string]string{"POD_NAMESPACE": "x"}, "POD_IPS is not set"},
		"an invalid address": {nil, map[string]string{"POD_NAMESPACE": "x", "POD_IPS": "10.0.0"}, "POD_IPS: ParseAddr"},
	}
	for what, c := range cases {
		if _, err := parse(c.args, environment(c.env)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}
