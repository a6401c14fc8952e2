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
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	v1alpha1ac "github.com/tailnet-egress/egress-operator/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

const (
	// maxTags and maxTag, in characters, are the limits of spec.tags.
	maxTags = 32
	maxTag  = 63
)

// proxyGroup is the ProxyGroup to use, and whether one is meant at all, be its
// name right or wrong.
func (t *translation) proxyGroup() (string, bool) {
	key := v1alpha1.AnnotationProxyGroup
	value, found := t.annotations[key]
	switch {
	case !found:
	case value == "":
		t.refuseAnnotation(key, fmt.Sprintf("invalid value of annotation %s: it is empty: expected the name of a ProxyGroup; "+
			"remove the annotation for a standalone proxy", key))
	case len(validation.IsDNS1123Label(value)) > 0:
		t.refuseAnnotation(key, fmt.Sprintf("invalid value of annotation %s: %q is not the name of a ProxyGroup: "+
			"expected at most 63 lower-case letters, digits and dashes, beginning and ending with a letter or digit", key, shorten(value)))
	}
	return value, found
}

// warnStandaloneOnly names what has no meaning beside a ProxyGroup.
func (t *translation) warnStandaloneOnly(labels map[string]string) {
	for _, dropped := range []struct{ key, instead string }{
		{v1alpha1.AnnotationProxyClass, "set the class on the ProxyGroup"},
		{v1alpha1.AnnotationHostname, "set hostnamePrefix on the ProxyGroup"},
		{v1alpha1.AnnotationTags, "set the tags on the ProxyGroup"},
	} {
		_, annotated := t.annotations[dropped.key]
		_, labelled := labels[dropped.key]
		if annotated || labelled && slices.Contains(LabelKeys, dropped.key) {
			t.warn(fmt.Sprintf("%s is ignored beside %s: %s", dropped.key, v1alpha1.AnnotationProxyGroup, dropped.instead))
		}
	}
}

// standalone reads what a proxy of the Service's own can be told.
func (t *translation) standalone(spec *v1alpha1ac.EgressTargetSpecApplyConfiguration, labels map[string]string) {
	if class := t.proxyClass(labels); class != "" {
		spec.WithProxyClass(class)
	}
	if hostname := t.hostname(); hostname != "" {
		spec.WithHostname(hostname)
	}
	tags := t.tags()
	if len(tags) > 0 {
		t.warn(v1alpha1.AnnotationTags + " has no effect: a device has the tags of the auth key that it logs in with")
	}
	spec.WithTags(tags...)
}

// proxyClass is the label's value, else the annotation's; empty is the default
// class.
func (t *translation) proxyClass(labels map[string]string) string {
	key := v1alpha1.AnnotationProxyClass
	path, from, value := field.NewPath("metadata", "labels").Key(key), "label", labels[key]
	if value == "" {
		path, from, value = annotationPath(key), "annotation", t.annotations[key]
	}
	if value != "" && len(validation.IsDNS1123Subdomain(value)) > 0 {
		t.refuse(path, shorten(value), fmt.Sprintf("invalid value of %s %s: %q is not the name of a ProxyClass: "+
			"expected lower-case letters, digits, dashes and dots, beginning and ending with a letter or digit", from, key, shorten(value)))
		return ""
	}
	return value
}

// hostname is the device name, empty for the default. Case has no meaning in it.
func (t *translation) hostname() string {
	key := v1alpha1.AnnotationHostname
	value := t.annotations[key]
	hostname := strings.ToLower(value)
	if hostname == "" {
		return ""
	}
	reason := "a hostname consists of letters, digits and dashes, and begins and ends with a letter or digit"
	if len(value) > validation.DNS1123LabelMaxLength {
		reason = fmt.Sprintf("it has %d characters, at most %d are allowed", len(value), validation.DNS1123LabelMaxLength)
	}
	if len(validation.IsDNS1123Label(hostname)) > 0 {
		t.refuseAnnotation(key, fmt.Sprintf("invalid Tailscale hostname specified %q: %s", shorten(value), reason))
		return ""
	}
	return hostname
}

// tags are those listed, each once.
func (t *translation) tags() []v1alpha1.Tag {
	key := v1alpha1.AnnotationTags
	value, found := t.annotations[key]
	if !found {
		return nil
	}
	var tags []v1alpha1.Tag
	for item := range strings.SplitSeq(value, ",") {
		tag := strings.TrimSpace(item)
		if reason := badTag(tag); reason != "" {
			t.refuseAnnotation(key, fmt.Sprintf("invalid tag %q: %s", shorten(tag), reason))
			continue
		}
		if !slices.Contains(tags, v1alpha1.Tag(tag)) {
			tags = append(tags, v1alpha1.Tag(tag))
		}
		if len(tags) > maxTags {
			t.refuseAnnotation(key, fmt.Sprintf("invalid value of annotation %s: it has more than %d tags", key, maxTags))
			return nil
		}
	}
	return tags
}

var tagName = regexp.MustCompile(`^[a-zA-Z0-9-]*$`)

// badTag says what is wrong with a tag, empty for nothing.
func badTag(tag string) string {
	name, found := strings.CutPrefix(tag, "tag:")
	switch {
	case tag == "":
		return "it is empty; expected tags separated by commas, such as tag:k8s"
	case !found:
		return "tags must start with 'tag:'"
	case name == "":
		return "tag names must not be empty"
	case !isLetter(name[0]):
		return "tag names must start with a letter, after 'tag:'"
	case !tagName.MatchString(name):
		return "tag names can only contain numbers, letters, or dashes"
	case len(tag) > maxTag:
		return fmt.Sprintf("it has %d characters, at most %d are allowed", len(tag), maxTag)
	}
	return ""
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
