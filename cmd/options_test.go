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
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
)

func parse(t *testing.T, env map[string]string, args ...string) (options, error) {
	t.Helper()
	var o options
	set := flag.NewFlagSet("test", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	o.register(set, func(name string) string { return env[name] })
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o, o.complete(func(string) ([]byte, error) { return nil, errors.New("no file") })
}

func TestOptions(t *testing.T) {
	env := map[string]string{"OPERATOR_NAMESPACE": "tailscale", "PROXY_IMAGE": "proxy", "PROXY_TAGS": "tag:a, tag:b", "OPERATOR_LOGIN_SERVER": "http://10.0.0.1"}
	o, err := parse(t, env)
	if err != nil {
		t.Fatal(err)
	}
	if o.operatorNamespace != "tailscale" || o.proxyImage != "proxy" || o.loginServer != "http://10.0.0.1" ||
		o.clusterDomain != "cluster.local" || strings.Join(o.tagList(), " ") != "tag:a tag:b" || o.credentials().String() != "tailscale/operator-oauth" {
		t.Errorf("got %+v", o)
	}
	o, err = parse(t, env, "--proxy-image=other", "--cluster-domain=example.org")
	if err != nil || o.proxyImage != "other" || o.clusterDomain != "example.org" {
		t.Errorf("a flag does not win over its environment variable: %+v, %v", o, err)
	}
	for name, arg := range map[string]string{
		"--operator-namespace": "--operator-namespace=", "PROXY_IMAGE": "--proxy-image=", "--cluster-domain": "--cluster-domain=a_b",
		"--auth-secret": "--auth-secret=A", "--drain-cap": "--drain-cap=-1s", "--default-tags": "--default-tags=k8s", "--login-server": "--login-server=example.com",
	} {
		if _, err := parse(t, env, arg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want an error that names %s", arg, err, name)
		}
	}
}

func TestDetectClusterDomain(t *testing.T) {
	for text, want := range map[string]string{
		"search tailscale.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\n": "cluster.local",
		"nameserver 10.96.0.10\nsearch tailscale.svc.k8s.example. svc.k8s.example. k8s.example.\n":    "k8s.example",
		"search example.org\n": "cluster.local",
		"":                     "cluster.local",
	} {
		if got := detectClusterDomain(func(string) ([]byte, error) { return []byte(text), nil }); got != want {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}
}
