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

package names

import (
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNamesFitAndDiffer(t *testing.T) {
	long := strings.Repeat("a", 63)
	parents := [][2]string{
		{"team", "a-db"}, {"team-a", "db"}, {"app", "db"}, {"app", long}, {"app", long[:62] + "b"},
		{long, long}, {"app", "db.with.dots"}, {"app", "db-with-dots"}, {"app", strings.Repeat("x.", 126) + "y"},
		{"app", strings.Repeat("a", 40) + "--------" + "z"},
	}
	children, hostnames := map[string]bool{}, map[string]bool{}
	for _, p := range parents {
		child, hostname := Child(p[0], p[1]), Hostname(p[0], p[1])
		if errs := validation.IsDNS1035Label(child); len(errs) > 0 || len(child) > maxChild {
			t.Errorf("Child(%q, %q) = %q (%d): %v", p[0], p[1], child, len(child), errs)
		}
		if errs := validation.IsDNS1123Label(hostname); len(errs) > 0 {
			t.Errorf("Hostname(%q, %q) = %q: %v", p[0], p[1], hostname, errs)
		}
		if children[child] {
			t.Errorf("Child(%q, %q) = %q collides", p[0], p[1], child)
		}
		children[child] = true
		hostnames[hostname] = true
		for k, v := range Labels(ParentEgressTarget, p[0], p[1], "proxy") {
			if errs := validation.IsValidLabelValue(v); len(errs) > 0 {
				t.Errorf("label %s of %q/%q = %q: %v", k, p[0], p[1], v, errs)
			}
		}
	}
	// team/a-db and team-a/db share the documented default <namespace>-<name>; the
	// tailnet itself tells such devices apart.
	if want := len(parents) - 1; len(hostnames) != want {
		t.Errorf("got %d hostnames, want %d: %v", len(hostnames), want, hostnames)
	}
}

func TestNamesAreStable(t *testing.T) {
	for got, want := range map[string]string{
		Child("app", "db"):       "ts-db-24c7bc69",
		Pod("ts-db-24c7bc69", 0): "ts-db-24c7bc69-0",
		Hostname("app", "db"):    "app-db",
		Ack("ts-db-24c7bc69-0"):  "ts-db-24c7bc69-0-ack",
		Slice("db", "ipv4"):      "db-ipv4",
	} {
		if got != want {
			t.Errorf("got %q, want %q: a changed name orphans what exists", got, want)
		}
	}
}

// TestCutNamesCannotBeMadeToMeet tries what a tenant could: names that are equal
// where they are cut, until two hashes meet. With 32 bits of hash some do.
func TestCutNamesCannotBeMadeToMeet(t *testing.T) {
	prefix := strings.Repeat("a", 44)
	seen := map[string]string{}
	for i := range 200_000 {
		name := prefix + strconv.Itoa(i)
		child := Child("app", name)
		if other, found := seen[child]; found {
			t.Fatalf("%q and %q are both %q", name, other, child)
		}
		seen[child] = name
	}
}

func FuzzChild(f *testing.F) {
	f.Add("app", "db")
	f.Fuzz(func(t *testing.T, namespace, name string) {
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			t.Skip("not names that the API server stores")
		}
		if errs := validation.IsDNS1035Label(Child(namespace, name)); len(errs) > 0 {
			t.Errorf("Child(%q, %q) = %q: %v", namespace, name, Child(namespace, name), errs)
		}
		if errs := validation.IsDNS1123Label(Hostname(namespace, name)); len(errs) > 0 {
			t.Errorf("Hostname(%q, %q) = %q: %v", namespace, name, Hostname(namespace, name), errs)
		}
	})
}
