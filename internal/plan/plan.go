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

// Package plan computes, from what was observed, the objects that should exist,
// those that should not, and the facts that the status reports. It is pure: the
// same input gives the same output.
package plan

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
	"github.com/tailnet-egress/egress-operator/internal/status"
)

// FieldOwner is the field manager of everything that a plan applies.
const FieldOwner = "egress-operator-egresstarget"

// Object is any API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Settings are those of the operator.
type Settings struct {
	// OperatorNamespace is where proxies run.
	OperatorNamespace string
	ProxyImage        string
	// LoginServer is the URL of the control server; empty for Tailscale's own.
	LoginServer string
	// ClusterDomain is the suffix of Service names, such as cluster.local.
	ClusterDomain string
	// DrainCap is how long a proxy that is told to stop lets connections finish.
	DrainCap time.Duration
}

// Observed is all that a plan may look at.
type Observed struct {
	Target *v1alpha1.EgressTarget
	// Children are all objects that bear the target's labels, and its Pods.
	Children []Object
	// NameHolder is the Service, ours or not, that has the name which the target's
	// Service should have; nil where there is none.
	NameHolder *corev1.Service
	// AuthKey logs a new proxy in; where it is empty, NoAuthKey says in a sentence
	// what is missing.
	AuthKey   string
	NoAuthKey string
	Settings  Settings
}

// Child is one object that should exist.
type Child struct {
	Apply runtime.ApplyConfiguration
	// Live is the object as observed, nil where it does not exist.
	Live Object
	// Claim is whether the name is to be claimed by a create, which fails where
	// somebody else has it, before it is applied.
	Claim *corev1.Service
	// Routes is whether clients find the proxy by this object.
	Routes bool
}

// Desired is the outcome of a plan.
type Desired struct {
	// Apply in this order.
	Apply []Child
	// Prune in this order, after Apply.
	Prune []Object
	Facts status.Facts
}

// pass is one computation.
type pass struct {
	Observed
	// child names the objects of the fleet; pod its only Pod and that Pod's Secret.
	child, pod, ackName string
	// service is where the backing Service is or should be.
	service types.NamespacedName
	labels  map[string]string
	proxy   proxyconfig.Target
	ack     *proxyconfig.Ack
}

// Target computes what an EgressTarget that is not being deleted should have.
func Target(o Observed) Desired {
	p := newPass(o)
	verdict := p.accept()
	desired := Desired{Facts: p.facts(verdict)}
	switch verdict.Reason {
	case v1alpha1.ReasonAccepted:
		desired.Apply = p.fleet()
		desired.Apply = append(desired.Apply, p.backingService())
		desired.Apply = append(desired.Apply, p.slices(p.service, p.Target.Spec.Ports)...)
		desired.Prune = p.prune(desired.Apply)
	case v1alpha1.ReasonProxyGroupNotFound:
		desired.Prune = Teardown(o.Children)
	default:
		desired.Apply = p.held()
	}
	return desired
}

// Teardown is what a deleted target leaves to be removed: the workload first, so
// that it stops before it loses what it reads. Pods go with their StatefulSet.
func Teardown(children []Object) []Object {
	var out []Object
	for _, c := range children {
		if _, isPod := c.(*corev1.Pod); !isPod {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Object) int {
		return cmp.Or(cmp.Compare(teardownRank(a), teardownRank(b)), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return out
}

func newPass(o Observed) pass {
	child := names.Child(o.Target.Namespace, o.Target.Name)
	pod := names.Pod(child, 0)
	p := pass{Observed: o, child: child, pod: pod, ackName: names.Ack(pod), service: BackingService(o.Target, o.Settings.OperatorNamespace)}
	p.labels = names.Labels(names.ParentEgressTarget, o.Target.Namespace, o.Target.Name, "proxy")
	p.ack = p.readAck()
	return p
}

// held keeps a target that must wait as it is, except that clients go on to be
// routed to its proxy exactly while that can serve them.
func (p *pass) held() []Child {
	var out []Child
	for _, c := range p.Children {
		if service, ok := c.(*corev1.Service); ok {
			out = append(out, p.slices(types.NamespacedName{Namespace: service.Namespace, Name: service.Name}, targetPorts(service))...)
		}
	}
	return out
}

// prune is every child that should not exist any more.
func (p *pass) prune(keep []Child) []Object {
	var out []Object
	for _, c := range Teardown(p.Children) {
		if !slices.ContainsFunc(keep, func(k Child) bool { return k.Live == c }) {
			out = append(out, c)
		}
	}
	return out
}

// find is the child of type T in namespace/name; its zero value where there is
// none.
func find[T Object](children []Object, namespace, name string) (found T, ok bool) {
	for _, c := range children {
		if typed, is := c.(T); is && c.GetNamespace() == namespace && c.GetName() == name {
			return typed, true
		}
	}
	return found, false
}

// child pairs what is wanted with what is there.
func child[T Object](p *pass, apply runtime.ApplyConfiguration, namespace, name string) Child {
	if live, ok := find[T](p.Children, namespace, name); ok {
		return Child{Apply: apply, Live: live}
	}
	return Child{Apply: apply}
}
