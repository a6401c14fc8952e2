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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	v1alpha1ac "github.com/tailnet-egress/egress-operator/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// maxPorts is the limit of spec.ports.
const maxPorts = 512

type portKey struct {
	protocol corev1.Protocol
	port     int32
}

// portsSeen finds what two ports cannot share.
type portsSeen struct {
	ports map[portKey]bool
	names map[string]bool
}

// ports reads the Service's ports. None means everything, which only a
// standalone proxy can forward.
func (t *translation) ports(ports []corev1.ServicePort, grouped bool) []*v1alpha1ac.TargetPortApplyConfiguration {
	path := field.NewPath("spec", "ports")
	if grouped && len(ports) == 0 {
		t.refuse(path, nil, "egress Service for ProxyGroup must have at least one target Port specified")
	}
	if len(ports) > maxPorts {
		t.refuse(path, len(ports), fmt.Sprintf("spec.ports has %d ports, at most %d are allowed; "+
			"a standalone proxy without spec.ports forwards every port", len(ports), maxPorts))
		return nil
	}
	seen := portsSeen{ports: make(map[portKey]bool, len(ports)), names: make(map[string]bool, len(ports))}
	out := make([]*v1alpha1ac.TargetPortApplyConfiguration, 0, len(ports))
	for i, port := range ports {
		if port.Protocol == "" {
			port.Protocol = corev1.ProtocolTCP
		}
		if t.checkPort(path.Index(i), port, len(ports) > 1, grouped, seen) {
			out = append(out, t.port(path.Index(i), port))
		}
	}
	return out
}

func (t *translation) checkPort(path *field.Path, port corev1.ServicePort, several, grouped bool, seen portsSeen) bool {
	before := len(t.errs)
	t.checkNumber(path, port, grouped, seen)
	at := path.Child("name")
	switch name := port.Name; {
	case name == "" && several:
		t.refuse(at, name, at.String()+" is empty: every port needs a name when there are several")
	case name != "" && len(validation.IsDNS1123Label(name)) > 0:
		t.refuse(at, shorten(name), fmt.Sprintf("%s: %q is not a port name: expected at most 63 lower-case letters, digits and dashes", at, shorten(name)))
	case name != "" && seen.names[name]:
		t.refuse(at, name, fmt.Sprintf("%s: %q is the name of another port too: port names must be unique", at, name))
	}
	seen.names[port.Name] = true
	return len(t.errs) == before
}

func (t *translation) checkNumber(path *field.Path, port corev1.ServicePort, grouped bool, seen portsSeen) {
	at, key := path.Child("port"), portKey{port.Protocol, port.Port}
	switch {
	case port.Protocol != corev1.ProtocolTCP && port.Protocol != corev1.ProtocolUDP:
		at = path.Child("protocol")
		t.refuse(at, shorten(string(port.Protocol)), fmt.Sprintf("%s: %q is not supported: use TCP or UDP", at, shorten(string(port.Protocol))))
	case port.Port < 1 || port.Port > 65535:
		t.refuse(at, port.Port, fmt.Sprintf("%s: %d is not a port: expected 1-65535", at, port.Port))
	case seen.ports[key]:
		t.refuse(at, port.Port, fmt.Sprintf("%s: %d/%s is listed twice: list each port once", at, port.Port, port.Protocol))
	case !grouped && reserved(key):
		t.refuse(at, port.Port, fmt.Sprintf("%s: %d/%s is used by a standalone proxy itself: choose another port and set targetPort: %d",
			at, port.Port, port.Protocol, port.Port))
	}
	seen.ports[key] = true
	at = path.Child("targetPort")
	if n := port.TargetPort.IntVal; port.TargetPort.Type == intstr.Int && n != 0 && (n < 1 || n > 65535) {
		t.refuse(at, n, fmt.Sprintf("%s: %d is not a port: expected 1-65535", at, n))
	}
}

func reserved(key portKey) bool {
	return key == portKey{corev1.ProtocolTCP, v1alpha1.ProxyHealthPort} ||
		key == portKey{corev1.ProtocolUDP, v1alpha1.ProxyTailscaledPort}
}

// port is one port of the target. A named targetPort names a container's port,
// which a host on a tailnet does not have; such Services work today with the
// port itself, so it is ignored with a warning rather than refused.
func (t *translation) port(path *field.Path, port corev1.ServicePort) *v1alpha1ac.TargetPortApplyConfiguration {
	out := v1alpha1ac.TargetPort().WithPort(port.Port).WithProtocol(port.Protocol)
	if port.Name != "" {
		out.WithName(port.Name)
	}
	switch {
	case port.TargetPort.Type == intstr.String && port.TargetPort.StrVal != "":
		t.warn(fmt.Sprintf("%s: %q is ignored, the target is dialled on %d: set a number to dial another port",
			path.Child("targetPort"), shorten(port.TargetPort.StrVal), port.Port))
	case port.TargetPort.IntVal != 0 && port.TargetPort.IntVal != port.Port:
		out.WithTargetPort(port.TargetPort.IntVal)
	}
	return out
}
