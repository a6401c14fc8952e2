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
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// cgroupMounts returns where the cgroup hierarchies are: one per controller in
// version 1, a single one in version 2.
func cgroupMounts() ([]string, error) {
	raw, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 2 && (f[2] == "cgroup" || f[2] == "cgroup2") {
			out = append(out, f[1])
		}
	}
	return out, nil
}

// makeCgroup makes a cgroup, such as "/t-node1", in every hierarchy, as the
// kubelet wants its cgroupRoot before it starts.
func makeCgroup(name string) error {
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		dir := filepath.Join(mount, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making a cgroup: %w", err)
		}
		if err := fillCgroup(mount, dir); err != nil {
			return fmt.Errorf("setting up cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// fillCgroup gives a new cgroup what its children need of its parent.
func fillCgroup(parent, dir string) error {
	// Version 1's cpuset takes no process before it has these.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), bytes.TrimSpace(value), 0)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(handDown(parent), handDown(dir))
}

// handDown gives a cgroup's children of version 2 all its controllers.
func handDown(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(controllers)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroup removes a cgroup and those below it from every hierarchy; none
// is no error. Its processes must have been killed; the kernel may take a
// moment until they no longer count.
func removeCgroup(name string) error {
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	var errs []error
	for _, mount := range mounts {
		errs = append(errs, removeCgroupDir(filepath.Join(mount, name)))
	}
	return errors.Join(errs...)
}

func removeCgroupDir(top string) error {
	var found []string
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			found = append(found, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(found) {
		err := syscall.Rmdir(dir)
		for range 50 {
			if !errors.Is(err, syscall.EBUSY) {
				break
			}
			time.Sleep(100 * time.Millisecond)
			err = syscall.Rmdir(dir)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing cgroup %s: %w", dir, err)
		}
	}
	return nil
}
