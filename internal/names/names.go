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

// Package names makes the names and labels of generated objects: deterministic,
// within Kubernetes' length limits, and different for different parents.
package names

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

const (
	// maxChild leaves room for what Kubernetes appends to a StatefulSet's name in
	// its Pods' labels ("-" and a revision hash of up to 10 characters, 63 in all).
	maxChild = 52
	maxLabel = 63
	hashLen  = 8
	// longHashLen is of names that are cut or changed, whose rest whoever chooses
	// them could vary until two short hashes meet.
	longHashLen = 16
)

// Child is the name of the objects made for namespace/name: a DNS label of at
// most 52 characters, ts-<name>-<hash of namespace/name>.
func Child(namespace, name string) string {
	hash, room := shortHash(namespace+"/"+name), maxChild-len("ts-")-1
	if len(name) > room-hashLen || strings.Contains(name, ".") {
		hash = hashOf(namespace+"/"+name, longHashLen)
	}
	return "ts-" + fit(sanitize(name), room-len(hash)) + "-" + hash
}

// Pod is the name of a StatefulSet's Pod and of that Pod's Secret.
func Pod(statefulSet string, ordinal int) string {
	return statefulSet + "-" + strconv.Itoa(ordinal)
}

// Ack is the name of the ConfigMap in which a Pod acknowledges its config.
func Ack(pod string) string { return pod + "-ack" }

// Slice is the name of a Service's EndpointSlice for one IP family, "ipv4" or
// "ipv6".
func Slice(service, family string) string { return service + "-" + family }

// Hostname is the default device name of a standalone proxy, a DNS label:
// <namespace>-<name>, cut and marked with a hash where that is too long or
// holds a dot.
func Hostname(namespace, name string) string {
	full := namespace + "-" + name
	if len(full) <= maxLabel && !strings.Contains(full, ".") {
		return full
	}
	return fit(sanitize(full), maxLabel-1-hashLen) + "-" + shortHash(namespace+"/"+name)
}

// LabelValue is s where it fits a label's value (63 characters), else a cut with
// a hash.
func LabelValue(s string) string {
	if len(s) <= maxLabel {
		return s
	}
	return fit(s, maxLabel-1-hashLen) + "-" + shortHash(s)
}

// ExternalName is the in-cluster DNS name of a Service.
func ExternalName(service, namespace, clusterDomain string) string {
	return service + "." + namespace + ".svc." + clusterDomain
}

func sanitize(s string) string { return strings.ReplaceAll(s, ".", "-") }

func fit(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.TrimRight(s, "-.")
}

func shortHash(s string) string { return hashOf(s, hashLen) }

func hashOf(s string, length int) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:length]
}
