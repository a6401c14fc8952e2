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

// Package proxyconfig is the wire format between the operator and its proxies:
// Config goes to a proxy, Ack comes back.
package proxyconfig

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const (
	// Version of the wire format; a reader refuses any other.
	Version = 1

	// ConfigKey is the key of a Config in its ConfigMap or Secret.
	ConfigKey = "egress-config.json"
	// AckKey is the key of an Ack in its ConfigMap.
	AckKey = "ack.json"

	// MaxBytes is the largest encoded Config or Ack, in bytes: what fits one API
	// object (1 MiB) with room for its metadata.
	MaxBytes = 1000 * 1000
	// MaxListeners is how many listeners one Config may hold: every port of two
	// protocols.
	MaxListeners = 2 * 65535
)

// Protocol of a listener.
type Protocol string

// The protocols that a listener can have.
const (
	TCP Protocol = "TCP"
	UDP Protocol = "UDP"
)

// Config is all that a proxy has to know of its targets.
type Config struct {
	Version int `json:"version"`
	// Generation grows with every change of the rest; of two Configs the one with
	// the higher generation is newer.
	Generation int64 `json:"generation"`
	// AcceptRoutes is whether a target needs the routes of subnet routers.
	AcceptRoutes bool `json:"acceptRoutes,omitempty"`
	// Hostname is the name of the device on the tailnet.
	Hostname string `json:"hostname,omitempty"`
	// Targets are sorted by ID.
	Targets []Target `json:"targets"`
}

// Target is one destination and the ports that lead to it.
type Target struct {
	// ID is namespace/name of the EgressTarget.
	ID string `json:"id"`
	// Revision names this content of the target; the proxy returns it in its Ack.
	Revision    string      `json:"revision"`
	Destination Destination `json:"destination"`
	// AllPorts forwards everything that is addressed to the proxy itself; the
	// target is then the only one of the Config and has no listeners.
	AllPorts bool `json:"allPorts,omitempty"`
	// Listeners are sorted by protocol and port.
	Listeners []Listener `json:"listeners,omitempty"`
}

// Destination has exactly one field set.
type Destination struct {
	// FQDN is in lower case and without a trailing dot.
	FQDN string     `json:"fqdn,omitempty"`
	IP   netip.Addr `json:"ip,omitzero"`
}

// String is the name or address itself.
func (d Destination) String() string {
	if d.FQDN != "" {
		return d.FQDN
	}
	return d.IP.String()
}

// Listener maps a port of the proxy to a port of the target; both 1-65535.
type Listener struct {
	Protocol   Protocol `json:"protocol"`
	Port       uint16   `json:"port"`
	TargetPort uint16   `json:"targetPort"`
}

// TargetError says what is wrong with one target; the others are not affected.
type TargetError struct {
	ID       string
	Revision string
	Err      error
}

func (e TargetError) Error() string { return fmt.Sprintf("target %q: %v", e.ID, e.Err) }
func (e TargetError) Unwrap() error { return e.Err }

// Canonical returns t with its listeners sorted and its Revision computed.
func (t Target) Canonical() Target {
	t.Listeners = slices.Clone(t.Listeners)
	slices.SortFunc(t.Listeners, func(a, b Listener) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	t.Revision = ""
	content, err := json.Marshal(t)
	if err != nil {
		// Strings, integers, booleans and addresses always encode.
		panic(err)
	}
	sum := sha256.Sum256(content)
	t.Revision = hex.EncodeToString(sum[:6])
	return t
}

// SameContent is whether two Configs differ in nothing but their generation.
func (c Config) SameContent(other Config) bool {
	c.Generation, other.Generation = 0, 0
	a, errA := c.Encode()
	b, errB := other.Encode()
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// Encode returns the canonical bytes of c: the same content gives the same
// bytes. It fails only where c exceeds MaxBytes.
func (c Config) Encode() ([]byte, error) {
	c.Version = Version
	targets := make([]Target, 0, len(c.Targets))
	for _, t := range c.Targets {
		targets = append(targets, t.Canonical())
	}
	slices.SortFunc(targets, func(a, b Target) int { return strings.Compare(a.ID, b.ID) })
	c.Targets = targets
	return encode(c)
}

// Decode reads a Config. Unknown fields are ignored. An error means that nothing
// of it can be used; a TargetError that this one target was left out.
func Decode(data []byte) (Config, []TargetError, error) {
	var c Config
	if err := decode(data, &c, &c.Version); err != nil {
		return Config{}, nil, fmt.Errorf("config: %w", err)
	}
	good := c.Targets[:0]
	var bad []TargetError
	seen := seenTargets{ids: map[string]bool{}, owners: map[listenerKey]string{}}
	for _, t := range c.Targets {
		if err := seen.admit(t, len(c.Targets)); err != nil {
			bad = append(bad, TargetError{ID: t.ID, Revision: t.Revision, Err: err})
			continue
		}
		good = append(good, t)
	}
	c.Targets = good
	return c, bad, nil
}

type listenerKey struct {
	protocol Protocol
	port     uint16
}

// seenTargets is the good targets so far and which of them owns each listener.
type seenTargets struct {
	ids    map[string]bool
	owners map[listenerKey]string
}

func (s seenTargets) admit(t Target, targets int) error {
	if err := t.validate(targets); err != nil {
		return err
	}
	if s.ids[t.ID] {
		return errors.New("an earlier target has the same id")
	}
	for _, l := range t.Listeners {
		if owner, taken := s.owners[listenerKey{l.Protocol, l.Port}]; taken {
			return fmt.Errorf("listener %s/%d already belongs to %q", l.Protocol, l.Port, owner)
		}
	}
	if len(s.owners)+len(t.Listeners) > MaxListeners {
		return fmt.Errorf("more than %d listeners in one config", MaxListeners)
	}
	s.ids[t.ID] = true
	for _, l := range t.Listeners {
		s.owners[listenerKey{l.Protocol, l.Port}] = t.ID
	}
	return nil
}

func (t Target) validate(targets int) error {
	switch {
	case t.ID == "":
		return errors.New("id is empty")
	case (t.Destination.FQDN == "") == !t.Destination.IP.IsValid():
		return errors.New("destination must have exactly one of fqdn and ip")
	case t.Destination.IP.Zone() != "":
		return fmt.Errorf("destination %s has a zone", t.Destination.IP)
	case t.Destination.IP.IsValid() && !t.Destination.IP.IsGlobalUnicast():
		return fmt.Errorf("destination %s is not a unicast address", t.Destination.IP)
	case t.AllPorts && len(t.Listeners) > 0:
		return errors.New("allPorts and listeners exclude each other")
	case t.AllPorts && targets > 1:
		return errors.New("allPorts needs a proxy of its own")
	case !t.AllPorts && len(t.Listeners) == 0:
		return errors.New("no listeners")
	}
	ports := map[listenerKey]bool{}
	for _, l := range t.Listeners {
		key := listenerKey{l.Protocol, l.Port}
		switch {
		case l.Protocol != TCP && l.Protocol != UDP:
			return fmt.Errorf("protocol %q is not TCP or UDP", l.Protocol)
		case l.Port == 0 || l.TargetPort == 0:
			return fmt.Errorf("listener %s/%d to %d: a port is 1-65535", l.Protocol, l.Port, l.TargetPort)
		case ports[key]:
			return fmt.Errorf("listener %s/%d is listed twice", l.Protocol, l.Port)
		}
		ports[key] = true
	}
	return nil
}

func encode(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%d bytes exceed the limit of %d", len(data), MaxBytes)
	}
	return data, nil
}

// decode reads data into v, whose field version then tells the format.
func decode(data []byte, v any, version *int) error {
	if len(data) > MaxBytes {
		return fmt.Errorf("%d bytes exceed the limit of %d", len(data), MaxBytes)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return err
	}
	if *version != Version {
		return fmt.Errorf("version %d is not understood, want %d", *version, Version)
	}
	return nil
}
