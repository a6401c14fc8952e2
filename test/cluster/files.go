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

package cluster

import (
	"embed"
	"fmt"
	"os"
	"strings"
	"text/template"
)

//go:embed manifests
var manifests embed.FS

// Images that every cluster needs; they are not pulled but imported.
const (
	pauseImage   = "registry.k8s.io/pause:3.10"
	coreDNSImage = "testbed.local/coredns:dev"
)

// render fills the template manifests/name.
func render(name string, values any) (string, error) {
	t, err := template.ParseFS(manifests, "manifests/"+name)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	if err := t.Option("missingkey=error").Execute(&out, values); err != nil {
		return "", fmt.Errorf("filling %s: %w", name, err)
	}
	return out.String(), nil
}

// renderTo fills the template manifests/name into a file.
func renderTo(file, name string, values any) error {
	text, err := render(name, values)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}
