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
	"cmp"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tailnet-egress/egress-operator/internal/plan"
	"github.com/tailnet-egress/egress-operator/internal/translate"
	"github.com/tailnet-egress/egress-operator/internal/webhookcert"
)

const (
	defaultClusterDomain = "cluster.local"
	defaultTags          = "tag:k8s"
	defaultDrainCap      = 20 * time.Second
)

var tag = regexp.MustCompile(`^tag:[a-zA-Z][a-zA-Z0-9-]*$`)

// options are the operator's own flags; the rest are those of every manager.
type options struct {
	operatorNamespace string
	proxyImage        string
	tags              string
	loginServer       string
	clusterDomain     string
	authSecret        string
	drainCap          time.Duration
	webhookPrefix     string
}

// register adds the flags to set. An environment variable gives a flag's default.
func (o *options) register(set *flag.FlagSet, getenv func(string) string) {
	set.StringVar(&o.operatorNamespace, "operator-namespace", getenv("OPERATOR_NAMESPACE"),
		"The namespace that the operator and its proxies run in ($OPERATOR_NAMESPACE).")
	set.StringVar(&o.proxyImage, "proxy-image", getenv("PROXY_IMAGE"), "The image of proxies ($PROXY_IMAGE).")
	set.StringVar(&o.tags, "default-tags", cmp.Or(getenv("PROXY_TAGS"), defaultTags),
		"The comma-separated ACL tags of proxies that ask for none ($PROXY_TAGS). An auth_key has tags of its own, which win.")
	set.StringVar(&o.loginServer, "login-server", getenv("OPERATOR_LOGIN_SERVER"),
		"The URL of the control server; empty for Tailscale's own ($OPERATOR_LOGIN_SERVER).")
	set.StringVar(&o.clusterDomain, "cluster-domain", "",
		"The suffix of the names of Services; detected from /etc/resolv.conf where empty.")
	set.StringVar(&o.authSecret, "auth-secret", "operator-oauth",
		"The Secret in the operator namespace whose key auth_key logs new proxies in.")
	set.DurationVar(&o.drainCap, "drain-cap", defaultDrainCap,
		"How long a proxy that is told to stop lets connections finish.")
	set.StringVar(&o.webhookPrefix, "webhook-name-prefix", "egress-operator-",
		"What the names of the webhook's Service and configurations begin with.")
}

// complete detects what was left out and checks the rest.
func (o *options) complete(readFile func(string) ([]byte, error)) error {
	if o.clusterDomain == "" {
		o.clusterDomain = detectClusterDomain(readFile)
	}
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(len(validation.IsDNS1123Label(o.operatorNamespace)) == 0,
		"--operator-namespace (or OPERATOR_NAMESPACE): %q is not a namespace", o.operatorNamespace)
	check(o.proxyImage != "", "--proxy-image (or PROXY_IMAGE) is not set: give the image that proxies run")
	check(len(validation.IsDNS1123Subdomain(o.clusterDomain)) == 0,
		"--cluster-domain: %q is not a domain such as %s", o.clusterDomain, defaultClusterDomain)
	check(len(validation.IsDNS1123Subdomain(o.authSecret)) == 0, "--auth-secret: %q is not the name of a Secret", o.authSecret)
	check(o.drainCap > 0 && o.drainCap <= time.Hour, "--drain-cap: %s is not above 0 and at most 1h", o.drainCap)
	for _, t := range o.tagList() {
		check(tag.MatchString(t), "--default-tags (or PROXY_TAGS): %q is not a tag: use tag: and a letter, then letters, digits and dashes", t)
	}
	if o.loginServer != "" {
		u, err := url.Parse(o.loginServer)
		check(err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "",
			"--login-server (or OPERATOR_LOGIN_SERVER): %q is not an http or https URL", o.loginServer)
	}
	return errors.Join(errs...)
}

func (o *options) tagList() []string {
	var out []string
	for t := range strings.SplitSeq(o.tags, ",") {
		if t = strings.TrimSpace(t); t != "" {
			out = append(out, t)
		}
	}
	return out
}

func (o *options) settings() plan.Settings {
	return plan.Settings{
		OperatorNamespace: o.operatorNamespace, ProxyImage: o.proxyImage, LoginServer: o.loginServer,
		ClusterDomain: o.clusterDomain, DrainCap: o.drainCap,
	}
}

func (o *options) translation() translate.Options {
	return translate.Options{OperatorNamespace: o.operatorNamespace, ClusterDomain: o.clusterDomain}
}

func (o *options) credentials() types.NamespacedName {
	return types.NamespacedName{Namespace: o.operatorNamespace, Name: o.authSecret}
}

func (o *options) certificates() webhookcert.Options {
	return webhookcert.Options{
		Namespace: o.operatorNamespace, SecretName: "webhook-server-cert",
		ServiceName:    o.webhookPrefix + "webhook-service",
		MutatingName:   o.webhookPrefix + "mutating-webhook-configuration",
		ValidatingName: o.webhookPrefix + "validating-webhook-configuration",
	}
}

// detectClusterDomain takes the domain from a Pod's search path, which has
// svc.<domain> in it.
func detectClusterDomain(readFile func(string) ([]byte, error)) string {
	data, err := readFile("/etc/resolv.conf")
	if err != nil {
		return defaultClusterDomain
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "search" {
			continue
		}
		for _, domain := range fields[1:] {
			if rest, ok := strings.CutPrefix(strings.TrimSuffix(domain, "."), "svc."); ok && rest != "" {
				return rest
			}
		}
	}
	return defaultClusterDomain
}

// fail says in one sentence a line why the operator cannot start.
func fail(err error) {
	fmt.Fprintf(os.Stderr, "egress-operator: %v\n", err)
	os.Exit(2)
}
