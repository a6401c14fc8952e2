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

package images

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

var testTime = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

// programs makes a directory with a file per program that holds its name.
func programs(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// contents reads an image back: for each path its mode and, of a file, what it
// holds; then the user and the entry point.
func contents(t *testing.T, file string) map[string]string {
	t.Helper()
	image, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{"user": config.Config.User, "entry point": strings.Join(config.Config.Entrypoint, " ")}
	layers := mutate.Extract(image)
	defer func() { _ = layers.Close() }()
	for r := tar.NewReader(layers); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[header.Name] = strings.TrimSpace(fmt.Sprintf("%o %s", header.Mode, data))
	}
}

func TestTheProductsImagesHoldWhatTheDockerfileSays(t *testing.T) {
	product := programs(t, "manager", "egress-proxy", "tailscaled", "pause", "testpod")
	dir := t.TempDir()
	paths, err := Build("../..", programs(t, "coredns"), product, dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) != 5 {
		t.Fatalf("the images are %v", paths)
	}
	for file, want := range map[string]map[string]string{
		"testbed.local_egress-operator_dev.tar": {
			"user": "65532:65532", "entry point": "/manager", "manager": "755 manager",
		},
		"testbed.local_egress-proxy_dev.tar": {
			"user": "0:0", "entry point": "/usr/local/bin/egress-proxy",
			"usr": "755", "usr/local": "755", "usr/local/bin": "755",
			"usr/local/bin/egress-proxy": "755 egress-proxy", "usr/local/bin/tailscaled": "755 tailscaled",
		},
		"registry.k8s.io_pause_3.10.tar": {"user": "", "entry point": "/pause", "pause": "755 pause"},
		"testbed.local_coredns_dev.tar":  {"user": "", "entry point": "/coredns", "coredns": "755 coredns"},
		"testbed.local_testpod_dev.tar":  {"user": "", "entry point": "/testpod", "testpod": "755 testpod"},
	} {
		want["tmp"] = "1777"
		if diff := cmp.Diff(want, contents(t, filepath.Join(dir, file))); diff != "" {
			t.Errorf("%s, wanted -, got +:\n%s", file, diff)
		}
	}
}

func TestTheSameFilesGiveTheSameImage(t *testing.T) {
	dir := programs(t, "one", "two")
	image := Image{
		Name: "testbed.local/x:dev", Entrypoint: []string{"/one"},
		Files: map[string]string{"/one": filepath.Join(dir, "one"), "/a/b/two": filepath.Join(dir, "two"), "/a/c": filepath.Join(dir, "two")},
	}
	var all [][]byte
	for i := range 3 {
		file := filepath.Join(t.TempDir(), "image.tar")
		if err := image.Write(file); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data)
		if !bytes.Equal(all[0], data) {
			t.Errorf("image %d differs from the first", i)
		}
		// An image does not tell when its files were built.
		if err := os.Chtimes(filepath.Join(dir, "one"), testTime, testTime); err != nil {
			t.Fatal(err)
		}
	}
}

func TestADockerfileThatIsNotUnderstoodIsAnError(t *testing.T) {
	const stage = "FROM base AS proxy\nCOPY --from=build /out/a /bin/a\nENTRYPOINT [\"/bin/a\"]\n"
	for _, test := range []struct{ name, dockerfile, want string }{
		{"as it is", stage, ""},
		{"files of another stage", "FROM x AS build\nRUN make\n" + stage + "FROM x AS other\nRUN rm /bin/a\n", ""},
		{"a command that changes files", stage + "RUN rm /bin/a\n", `"RUN rm /bin/a" in stage proxy`},
		{"a copy with flags", strings.Replace(stage, "/out/a", "--chmod=700 /out/a", 1), "--chmod=700"},
		{"a copy of two files", strings.Replace(stage, "/out/a", "/out/a /out/b", 1), "/out/b"},
		{"a copy into a directory", strings.Replace(stage, "/bin/a\n", "/bin/\n", 1), "/bin/"},
		{"a copy from elsewhere", strings.Replace(stage, "/out/a", "/etc/a", 1), "/etc/a"},
		{"a copy from another stage", strings.Replace(stage, "build", "base", 1), "--from=base"},
		{"an entry point for a shell", strings.Replace(stage, `["/bin/a"]`, "/bin/a", 1), "entry point"},
		{"no such stage", strings.Replace(stage, "proxy", "prox", 1), "no stage proxy"},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "Dockerfile")
			if err := os.WriteFile(file, []byte(test.dockerfile), 0o600); err != nil {
				t.Fatal(err)
			}
			image, err := FromDockerfile(file, "proxy", "/programs")
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("the error is %v, does not name %s", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(slices.Collect(maps.Keys(image.Files)), image.Files["/bin/a"], image.Entrypoint); got != "[/bin/a]/programs/a[/bin/a]" {
				t.Errorf("the image is %s", got)
			}
		})
	}
}
