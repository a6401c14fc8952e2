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

package translate

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	v1alpha1ac "github.com/tailnet-egress/egress-operator/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

const (
	exampleFQDN = "expected two or more labels of letters, digits and dashes, such as db.tail1234.ts.net"
	exampleIP   = "expected an address such as 100.64.0.9 or fd7a:115c:a1e0::9"
	useIPKey    = "for an IP address set " + v1alpha1.AnnotationTailnetTargetIP + " instead"
	useFQDNKey  = "for a name set " + v1alpha1.AnnotationTailnetFQDN + " instead"

	// maxFQDN is the longest DNS name in characters, without a trailing dot.
	maxFQDN = 253
)

// fqdnPattern is the rule of spec.destination.fqdn, for a name without its
// trailing dot.
var fqdnPattern = regexp.MustCompile(`^([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?[.])+[a-zA-Z]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)

// destination reads the one target key. An empty one beside one that is set is
// what templates leave behind, and is not held against the Service.
func (t *translation) destination() *v1alpha1ac.DestinationApplyConfiguration {
	var set, empty []string
	for _, key := range TargetKeys {
		switch value, found := t.annotations[key]; {
		case value != "":
			set = append(set, key)
		case found:
			empty = append(empty, key)
		}
	}
	if len(set) == 0 {
		return t.noDestination(empty)
	}
	for _, key := range empty {
		t.warn("annotation " + key + " is empty and is ignored")
	}
	if len(set) > 1 {
		t.refuseAnnotation(set[0], "only one of annotations "+list(set)+" can be set")
		return nil
	}
	if key := set[0]; key != v1alpha1.AnnotationTailnetFQDN {
		return t.ip(key)
	}
	return t.fqdn()
}

func (t *translation) noDestination(empty []string) *v1alpha1ac.DestinationApplyConfiguration {
	key := empty[0]
	isFQDN := key == v1alpha1.AnnotationTailnetFQDN
	switch {
	case t.annotations[v1alpha1.AnnotationProxyGroup] != "":
		ipKey := key
		if isFQDN {
			ipKey = v1alpha1.AnnotationTailnetIP
		}
		t.refuseAnnotation(key, fmt.Sprintf("egress Service for ProxyGroup must have one of %s, %s annotations set",
			v1alpha1.AnnotationTailnetFQDN, ipKey))
		return nil
	case isFQDN:
		return t.fqdn()
	default:
		return t.ip(key)
	}
}

func (t *translation) fqdn() *v1alpha1ac.DestinationApplyConfiguration {
	key := v1alpha1.AnnotationTailnetFQDN
	value := t.annotations[key]
	name := strings.TrimSuffix(value, ".")
	text := fmt.Sprintf("invalid value of annotation %s: %q does not appear to be a valid MagicDNS name: ", key, shorten(value))
	switch {
	case len(name) > maxFQDN:
		t.refuseAnnotation(key, text+fmt.Sprintf("it has %d characters, at most %d are allowed", len(name), maxFQDN))
	case isIP(value):
		t.refuseAnnotation(key, text+useIPKey)
	case !fqdnPattern.MatchString(name):
		t.refuseAnnotation(key, text+exampleFQDN)
	default:
		return v1alpha1ac.Destination().WithFQDN(strings.ToLower(name))
	}
	return nil
}

func (t *translation) ip(key string) *v1alpha1ac.DestinationApplyConfiguration {
	if key == v1alpha1.AnnotationDeprecatedTargetIP {
		t.warn("annotation " + key + " is deprecated: use " + v1alpha1.AnnotationTailnetTargetIP)
	}
	value := t.annotations[key]
	addr, err := netip.ParseAddr(value)
	if err == nil && addr.Zone() != "" {
		err = fmt.Errorf("it has the zone %q", addr.Zone())
	}
	if err != nil {
		right := exampleIP
		if fqdnPattern.MatchString(strings.TrimSuffix(value, ".")) {
			right = useFQDNKey
		}
		t.refuseAnnotation(key, fmt.Sprintf("invalid value of annotation %s: %q could not be parsed as a valid IP Address, error: %s; %s",
			key, shorten(value), shorten(err.Error()), right))
		return nil
	}
	addr = addr.Unmap()
	if kind := unreachable(addr); kind != "" {
		t.refuseAnnotation(key, fmt.Sprintf("invalid value of annotation %s: %q is %s, which is not on a tailnet; "+
			"expected the address of a device, such as 100.64.0.9, or of a host behind a subnet router", key, shorten(value), kind))
		return nil
	}
	return v1alpha1ac.Destination().WithIP(addr.String())
}

func isIP(value string) bool {
	_, err := netip.ParseAddr(value)
	return err == nil
}

// unreachable says what kind of address a proxy can never forward to, empty for
// all others.
func unreachable(addr netip.Addr) string {
	switch {
	case addr.IsUnspecified():
		return "the unspecified address"
	case addr.IsLoopback():
		return "a loopback address"
	case addr.IsMulticast():
		return "a multicast address"
	case addr.IsLinkLocalUnicast():
		return "a link-local address"
	case !addr.IsGlobalUnicast():
		return "the broadcast address"
	}
	return ""
}

// list joins with commas and a last "and".
func list(items []string) string {
	last := len(items) - 1
	return strings.Join(items[:last], ", ") + " and " + items[last]
}
