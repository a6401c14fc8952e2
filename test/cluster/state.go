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
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tailnet-egress/egress-operator/test/netlab"
)

// dirs are the places below a cluster's state directory.
type dirs string

func (d dirs) path(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}
func (d dirs) pids() string           { return d.path("pids") }
func (d dirs) logs() string           { return d.path("logs") }
func (d dirs) log(name string) string { return d.path("logs", name+".log") }

// recordFile marks a directory as a cluster's.
const recordFile = "cluster.json"

// record lists what a cluster makes outside of its state directory; it is
// written before any of that is made.
type record struct {
	Namespaces []string `json:"namespaces"`
	Cgroups    []string `json:"cgroups"`
	// Dirs are directories that did not exist before.
	Dirs []string `json:"dirs"`
}

// hiddenDirs are places that the programs of a node insist on. Each node has a
// file system of its own there.
var hiddenDirs = []string{"/run/containerd", "/var/log/containers", "/var/lib/cni", "/var/lib/kubelet"}

func writeRecord(d dirs, r record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(d.path(recordFile), raw, 0o644)
}

// Remove ends and removes everything that a cluster with that state directory
// left, the directory included. A directory that does not exist is no error.
func Remove(stateDir string) error {
	if err := removeAllButLogs(dirs(stateDir)); err != nil {
		return err
	}
	return os.RemoveAll(stateDir)
}

func removeAllButLogs(d dirs) error {
	raw, err := os.ReadFile(d.path(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return refuseForeign(d)
	}
	if err != nil {
		return err
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("reading %s: %w", d.path(recordFile), err)
	}
	records, err := filepath.Glob(filepath.Join(d.pids(), "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, record := range records {
		errs = append(errs, endRecorded(record))
	}
	for _, namespace := range r.Namespaces {
		errs = append(errs, (&netlab.Host{Namespace: namespace}).Close())
	}
	for _, cgroup := range r.Cgroups {
		errs = append(errs, removeCgroup(cgroup))
	}
	for _, dir := range r.Dirs {
		// One that is in use by now is somebody else's.
		_ = os.Remove(dir)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return removeContents(d)
}

// refuseForeign protects directories that never held a cluster.
func refuseForeign(d dirs) error {
	entries, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty and holds no cluster: not removed", d)
	}
	return nil
}

func removeContents(d dirs) error {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := d.path(entry.Name())
		if path == d.logs() || entry.Name() == recordFile {
			continue
		}
		err := os.RemoveAll(path)
		// The mounts of a killed node go a moment after its processes.
		for range 50 {
			if err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
			err = os.RemoveAll(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
