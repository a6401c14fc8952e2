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

// Package images assembles container images from static programs, without a
// daemon or a registry. What the product's images hold is read from the
// Dockerfile's final stages, so that both are the same.
package images

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Names of the images, which exist in no registry.
const (
	Pause    = "registry.k8s.io/pause:3.10"
	CoreDNS  = "testbed.local/coredns:dev"
	TestPod  = "testbed.local/testpod:dev"
	Operator = "testbed.local/egress-operator:dev"
	Proxy    = "testbed.local/egress-proxy:dev"
)

// Image is what an image holds.
type Image struct {
	Name string
	// Files are paths in the image and where each comes from.
	Files      map[string]string
	Entrypoint []string
	User       string
}

// Build writes every image of the testbed as a tar into dir and returns their
// paths; root is the repository, cluster and product where the programs are.
func Build(root, cluster, product, dir string) ([]string, error) {
	operator, err := FromDockerfile(filepath.Join(root, "Dockerfile"), "operator", product)
	if err != nil {
		return nil, err
	}
	operator.Name = Operator
	proxy, err := FromDockerfile(filepath.Join(root, "Dockerfile"), "proxy", product)
	if err != nil {
		return nil, err
	}
	proxy.Name = Proxy
	single := func(image, from, program string) Image {
		return Image{Name: image, Files: map[string]string{"/" + program: filepath.Join(from, program)}, Entrypoint: []string{"/" + program}}
	}
	var paths []string
	for _, image := range []Image{
		single(Pause, product, "pause"), single(CoreDNS, cluster, "coredns"), single(TestPod, product, "testpod"), operator, proxy,
	} {
		file := filepath.Join(dir, strings.NewReplacer("/", "_", ":", "_").Replace(image.Name)+".tar")
		if err := image.Write(file); err != nil {
			return nil, fmt.Errorf("image %s: %w", image.Name, err)
		}
		paths = append(paths, file)
	}
	return paths, nil
}

// FromDockerfile reads what the stage of that name copies from the build stage's
// /out, which is taken from dir, and its user and entry point.
func FromDockerfile(dockerfile, stage, dir string) (Image, error) {
	file, err := os.Open(dockerfile)
	if err != nil {
		return Image{}, err
	}
	defer file.Close() //nolint:errcheck // It was only read.
	image, inside := Image{Files: map[string]string{}}, false
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		switch instruction := fields[0]; {
		case instruction == "FROM":
			inside = fields[len(fields)-1] == stage
		case !inside || strings.HasPrefix(instruction, "#"):
		case instruction == "COPY" && copiesProgram(fields):
			image.Files[fields[3]] = filepath.Join(dir, path.Base(fields[2]))
		case instruction == "USER":
			image.User = fields[1]
		case instruction == "ENTRYPOINT":
			if err := json.Unmarshal([]byte(strings.Join(fields[1:], " ")), &image.Entrypoint); err != nil {
				return Image{}, fmt.Errorf("%s: entry point of stage %s: %w", dockerfile, stage, err)
			}
		default:
			return Image{}, fmt.Errorf("%s: %q in stage %s is not understood", dockerfile, lines.Text(), stage)
		}
	}
	if err := lines.Err(); err != nil {
		return Image{}, err
	}
	if len(image.Files) == 0 || len(image.Entrypoint) == 0 {
		return Image{}, fmt.Errorf("%s: no stage %s with files and an entry point", dockerfile, stage)
	}
	return image, nil
}

// copiesProgram is whether it is "COPY --from=build /out/PROGRAM /PATH": one file
// that the build made.
func copiesProgram(fields []string) bool {
	return len(fields) == 4 && fields[1] == "--from=build" && path.Dir(fields[2]) == "/out" &&
		path.IsAbs(fields[3]) && !strings.HasSuffix(fields[3], "/")
}

// Write writes the image as a tar that containerd imports.
func (i Image) Write(file string) error {
	layerBytes, err := i.layer()
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layerBytes)), nil })
	if err != nil {
		return err
	}
	config, err := empty.Image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{User: i.User, Entrypoint: i.Entrypoint, WorkingDir: "/", Env: []string{"PATH=/usr/local/bin"}}
	image, err := mutate.ConfigFile(empty.Image, config)
	if err != nil {
		return err
	}
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return err
	}
	tag, err := name.NewTag(i.Name)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, image)
}

// layer is a tar of the files and the directories above them.
func (i Image) layer() ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	dirs := map[string]bool{"/": true}
	addDir := func(dir string, mode int64) error {
		dirs[dir] = true
		return w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(dir, "/") + "/", Mode: mode, Typeflag: tar.TypeDir})
	}
	// As in the base images.
	if err := addDir("/tmp", 0o1777); err != nil {
		return nil, err
	}
	for _, target := range slices.Sorted(maps.Keys(i.Files)) {
		for _, dir := range above(target) {
			if !dirs[dir] {
				if err := addDir(dir, 0o755); err != nil {
					return nil, err
				}
			}
		}
		data, err := os.ReadFile(i.Files[target])
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(target, "/"), Mode: 0o755, Size: int64(len(data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

// above lists the directories above a file, the outermost first.
func above(file string) []string {
	var out []string
	for dir := path.Dir(file); dir != "/" && dir != "."; dir = path.Dir(dir) {
		out = append([]string{dir}, out...)
	}
	return out
}
