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

// Package translate turns an annotated ExternalName Service into an
// EgressTarget. It is pure: the webhook and the Service controller call the same
// function and so can never disagree.
package translate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	v1alpha1ac "github.com/tailnet-egress/egress-operator/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
)

// ipKeys are the spellings of the target's IP address, the one that a message
// names first.
var ipKeys = []string{
	v1alpha1.AnnotationTailnetIP, v1alpha1.AnnotationTailnetTargetIP, v1alpha1.AnnotationDeprecatedTargetIP,
}

// TargetKeys are the annotations that make an ExternalName Service ours: any one
// of them.
var TargetKeys = append(slices.Clone(ipKeys), v1alpha1.AnnotationTailnetFQDN)

// Keys are all annotations that a translation reads.
var Keys = append(slices.Clone(TargetKeys),
	v1alpha1.AnnotationProxyGroup, v1alpha1.AnnotationProxyClass, v1alpha1.AnnotationHostname, v1alpha1.AnnotationTags)

// LabelKeys are all labels that a translation reads.
var LabelKeys = []string{v1alpha1.AnnotationProxyClass}

// Options are what a translation needs to know of the cluster.
type Options struct {
	// OperatorNamespace is where backing Services of translated targets live.
	OperatorNamespace string
	// ClusterDomain is the DNS domain of the cluster, such as cluster.local.
	ClusterDomain string
}

// Result is a Service that could be translated.
type Result struct {
	// Target is the EgressTarget to apply.
	Target *v1alpha1ac.EgressTargetApplyConfiguration
	// ExternalName is what the Service's spec.externalName has to be: the
	// in-cluster name of the backing Service.
	ExternalName string
	// Warnings are sentences for whoever wrote the Service.
	Warnings []string
}

// HasTargetKey is whether the annotations hold one of TargetKeys, even an empty
// one.
func HasTargetKey(annotations map[string]string) bool {
	return slices.ContainsFunc(TargetKeys, func(key string) bool {
		_, found := annotations[key]
		return found
	})
}

// Ours is whether the Service is to be translated. Everything else on every
// other Service is left alone.
func Ours(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeExternalName && HasTargetKey(svc.Annotations)
}

// UnexpectedType is a sentence about a Service that carries a target key but is
// of a type that cannot be translated, else empty. Such a Service is legitimate
// and is not refused.
func UnexpectedType(svc *corev1.Service) string {
	if !HasTargetKey(svc.Annotations) || svc.Spec.Type == corev1.ServiceTypeExternalName {
		return ""
	}
	serviceType := svc.Spec.Type
	if serviceType == "" {
		serviceType = corev1.ServiceTypeClusterIP
	}
	return "unexpected egress Service type " + string(serviceType) + ". The only supported type is ExternalName."
}

// Service translates a Service for which Ours holds. On success, and only then,
// there are no errors; the Detail of each error is a sentence of its own that
// names the field, the value and what would be right. What may become valid
// later, such as a ProxyGroup that does not exist yet, is never an error.
//
//	kind: Service                                      kind: EgressTarget
//	metadata:                                          metadata:
//	  name: db                                           name: db
//	  namespace: app                                     namespace: app
//	  uid: 1b4e…                                         ownerReferences: [the Service, as controller]
//	  annotations:                                       labels: {tailscale.com/managed: "true", …}
//	    tailscale.com/tailnet-fqdn: DB.tail1.ts.net.   spec:
//	    tailscale.com/tags: "tag:k8s, tag:db"     →      destination:
//	    tailscale.com/hostname: app-db                     fqdn: db.tail1.ts.net
//	spec:                                                tags: ["tag:k8s", "tag:db"]
//	  type: ExternalName                                 hostname: app-db
//	  externalName: placeholder                          ports:
//	  ports:                                             - port: 15432
//	  - port: 15432                                        protocol: TCP
//	    targetPort: 5432                                   targetPort: 5432
//
// and ExternalName is ts-db-24c7bc69.tailscale.svc.cluster.local.
func Service(svc *corev1.Service, opts Options) (*Result, field.ErrorList) {
	if text := UnexpectedType(svc); text != "" {
		return nil, field.ErrorList{field.Invalid(field.NewPath("spec", "type"), svc.Spec.Type, text)}
	}
	t := translation{annotations: svc.Annotations}
	spec := v1alpha1ac.EgressTargetSpec().WithDestination(t.destination())
	group, grouped := t.proxyGroup()
	if grouped {
		spec.WithProxyGroup(group)
		t.warnStandaloneOnly(svc.Labels)
	} else {
		t.standalone(spec, svc.Labels)
	}
	spec.WithPorts(t.ports(svc.Spec.Ports, grouped)...)
	if len(validation.IsDNS1035Label(svc.Name)) > 0 {
		// A Service's name may begin with a digit, but the default of serviceName
		// may not: not every API server that we run on stores such a Service.
		spec.WithServiceName(names.Child(svc.Namespace, svc.Name))
	}
	if len(t.errs) > 0 {
		return nil, t.errs
	}
	return &Result{
		Target:       target(svc, group, spec),
		ExternalName: names.ExternalName(names.Child(svc.Namespace, svc.Name), opts.OperatorNamespace, opts.ClusterDomain),
		Warnings:     t.warnings,
	}, nil
}

func target(svc *corev1.Service, group string, spec *v1alpha1ac.EgressTargetSpecApplyConfiguration) *v1alpha1ac.EgressTargetApplyConfiguration {
	labels := names.Labels(names.ParentEgressTarget, svc.Namespace, svc.Name, "target")
	if group != "" {
		labels[v1alpha1.LabelProxyGroup] = group
	}
	target := v1alpha1ac.EgressTarget(svc.Name, svc.Namespace).WithLabels(labels).WithSpec(spec)
	if svc.UID != "" {
		// Without blockOwnerDeletion: it would need a permission on every Service's
		// finalizers, and nothing has to wait for the target to be gone.
		target.WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion("v1").WithKind("Service").WithName(svc.Name).WithUID(svc.UID).WithController(true))
	}
	return target
}

// maxSentences bounds a message: a Service can be wrong in a thousand ports.
const maxSentences = 5

// Message is the errors of a translation as one text: admission answers with it
// and conditions and events repeat it.
func Message(errs field.ErrorList) string {
	sentences := make([]string, 0, maxSentences)
	for i, err := range errs {
		if i == maxSentences {
			sentences = append(sentences, "and more")
			break
		}
		sentences = append(sentences, err.Detail)
	}
	return strings.Join(sentences, "; ")
}

// translation collects what is said about one Service.
type translation struct {
	annotations map[string]string
	errs        field.ErrorList
	warnings    []string
}

func (t *translation) refuse(path *field.Path, value any, sentence string) {
	t.errs = append(t.errs, field.Invalid(path, value, sentence))
}

func (t *translation) refuseAnnotation(key, sentence string) {
	t.refuse(annotationPath(key), shorten(t.annotations[key]), sentence)
}

func (t *translation) warn(sentence string) { t.warnings = append(t.warnings, sentence) }

func annotationPath(key string) *field.Path {
	return field.NewPath("metadata", "annotations").Key(key)
}

// maxQuoted is how much of a value a message repeats, in bytes; an annotation
// may hold 256 KiB.
const maxQuoted = 256

func shorten(value string) string {
	if len(value) <= maxQuoted {
		return value
	}
	return strings.ToValidUTF8(value[:maxQuoted], "") + "…"
}
