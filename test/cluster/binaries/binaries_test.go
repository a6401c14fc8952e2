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

package binaries

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repository makes one whose modules hold a program that prints its version.
func repository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for file, content := range map[string]string{
		"kubernetes/go.mod":  "module k\n\ngo 1.26\n\nrequire (\n\tk8s.io/kubernetes v1.2.3\n)\n",
		"kubernetes/main.go": "package main\n\nfunc main() { print(\"kubernetes\") }\n",
		"kubernetes/go.sum":  "",
		"containers/go.mod":  "module c\n\ngo 1.26\n",
		"containers/main.go": "package main\n\nfunc main() { print(\"containers\") }\n",
		"containers/go.sum":  "",
		"coredns/go.mod":     "module d\n\ngo 1.26\n",
		"coredns/main.go":    "package main\n\nfunc main() { print(\"coredns\") }\n",
		"coredns/go.sum":     "",
	} {
		write(t, filepath.Join(modules(root), file), content, 0o644)
	}
	return root
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyWhatIsMissingIsBuilt(t *testing.T) {
	root := repository(t)
	wanted := []binary{{name: "one", module: kubernetesModule, pkg: "."}, {name: "two", module: corednsModule, pkg: "."}}
	var progress bytes.Buffer
	dir, err := ensure(t.Context(), root, &progress, wanted[:1])
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(dir, filepath.Join(root, "bin", "testbed-v1.2.3-")) {
		t.Errorf("the directory is %s", dir)
	}
	if !strings.Contains(progress.String(), "building one (1 of 1)\n") {
		t.Errorf("progress: %s", progress.String())
	}

	// What is there is left alone, even when it is no program at all.
	write(t, filepath.Join(dir, "one"), "kept", 0o755)
	progress.Reset()
	if _, err := ensure(t.Context(), root, &progress, wanted); err != nil {
		t.Fatal(err)
	}
	if got := progress.String(); strings.Contains(got, "one") || !strings.Contains(got, "building two (1 of 1)\n") {
		t.Errorf("progress: %s", got)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "one")); err != nil || string(data) != "kept" {
		t.Errorf("one is now %q, %v", data, err)
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "two")).CombinedOutput(); err != nil || string(out) != "coredns" {
		t.Errorf("two says %q, %v", out, err)
	}
}

func TestAFailedBuildLeavesNothingAndSaysWhy(t *testing.T) {
	root := repository(t)
	write(t, filepath.Join(modules(root), "containers", "main.go"), "package main\n\nfunc main() { undefined() }\n", 0o644)
	_, err := ensure(t.Context(), root, &bytes.Buffer{}, []binary{{name: "broken", module: containersModule, pkg: "."}})
	if err == nil || !strings.Contains(err.Error(), "building broken") || !strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("the error is %v", err)
	}
	dir, err := clusterDir(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "broken")); err == nil {
		t.Error("a program is there")
	}
}

func TestTheDirectoryFollowsEveryFileThatPinsVersions(t *testing.T) {
	root := repository(t)
	seen := map[string]string{}
	for _, file := range []string{
		"", "kubernetes/go.mod", "kubernetes/go.sum", "containers/go.mod", "containers/go.sum",
		"coredns/go.mod", "coredns/go.sum", "coredns/main.go",
	} {
		if file != "" {
			path := filepath.Join(modules(root), file)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, string(data)+"\n// changed\n", 0o644)
		}
		dir, err := clusterDir(root)
		if err != nil {
			t.Fatal(err)
		}
		if before, ok := seen[dir]; ok {
			t.Errorf("after a change of %q the directory is the one from before, %q", file, before)
		}
		seen[dir] = file
	}
}

func TestMissingNamesEveryPackageAtOnce(t *testing.T) {
	// The working directory is no repository: nothing was built there.
	t.Chdir(t.TempDir())
	path := t.TempDir()
	t.Setenv("PATH", path)
	script := func(name, content string) { write(t, filepath.Join(path, name), "#!/bin/sh\n"+content, 0o755) }

	if got := Missing(); !strings.HasPrefix(got, "go is not installed") {
		t.Errorf("without anything: %q", got)
	}
	script("go", "echo /dev/null\n")
	if got := Missing(); !strings.Contains(got, "apt-get install gcc pkg-config libseccomp-dev (") {
		t.Errorf("with go alone: %q", got)
	}
	script("gcc", "")
	script("pkg-config", "exit 1\n")
	if got := Missing(); !strings.Contains(got, "apt-get install libseccomp-dev (") {
		t.Errorf("without the headers: %q", got)
	}
	script("runc", "")
	if got := Missing(); got != "" {
		t.Errorf("with an installed runc: %q", got)
	}
	if err := os.Remove(filepath.Join(path, "runc")); err != nil {
		t.Fatal(err)
	}
	script("pkg-config", "")
	if got := Missing(); got != "" {
		t.Errorf("with everything: %q", got)
	}
}

func TestAnInstalledRuncIsUsedWhereNoneCanBeBuilt(t *testing.T) {
	root := repository(t)
	path := t.TempDir()
	t.Setenv("PATH", path)
	write(t, filepath.Join(path, "runc"), "#!/bin/sh\n", 0o755)
	dir, err := ensure(t.Context(), root, &bytes.Buffer{}, []binary{{name: "runc", module: containersModule, pkg: ".", cgo: true}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(path, "runc"), filepath.Join(path, "moved")); err != nil {
		t.Fatal(err)
	}
	path = t.TempDir()
	t.Setenv("PATH", path)
	write(t, filepath.Join(path, "runc"), "#!/bin/sh\n", 0o755)
	if _, err := ensure(t.Context(), root, &bytes.Buffer{}, []binary{{name: "runc", module: containersModule, pkg: ".", cgo: true}}); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(filepath.Join(dir, "runc")); err != nil || target != filepath.Join(path, "runc") {
		t.Errorf("runc is a link to %q, %v", target, err)
	}
}
