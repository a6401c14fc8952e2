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

package configfile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// volume is a directory as the kubelet makes it for a Secret or ConfigMap: files
// are links to ..data/<file>, and ..data links to a directory per version.
type volume struct {
	t       *testing.T
	dir     string
	version int
}

func (v *volume) write(files map[string]string) {
	v.t.Helper()
	v.version++
	version := fmt.Sprintf("..2026_%d", v.version)
	v.must(os.Mkdir(filepath.Join(v.dir, version), 0o755))
	for name, content := range files {
		v.must(os.WriteFile(filepath.Join(v.dir, version, name), []byte(content), 0o644))
	}
	old, _ := os.Readlink(filepath.Join(v.dir, "..data"))
	v.must(os.Symlink(version, filepath.Join(v.dir, "..data_tmp")))
	v.must(os.Rename(filepath.Join(v.dir, "..data_tmp"), filepath.Join(v.dir, "..data")))
	for name := range files {
		link := filepath.Join(v.dir, name)
		if _, err := os.Lstat(link); err != nil {
			v.must(os.Symlink(filepath.Join("..data", name), link))
		}
	}
	if old != "" {
		v.must(os.RemoveAll(filepath.Join(v.dir, old)))
	}
}

func (v *volume) must(err error) {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
}

func TestWatchFollowsTheKubelet(t *testing.T) {
	v := &volume{t: t, dir: t.TempDir()}
	v.write(map[string]string{"a": "one", "b": "same", "c": "not asked for"})
	ctx, cancel := context.WithCancel(t.Context())
	changes := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, v.dir, []string{"a", "b", "absent"}, func(name string, content []byte) { changes <- name + "=" + string(content) })
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-changes:
			if got != want {
				t.Fatalf("told of %s, want %s", got, want)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("never told of %s", want)
		}
	}
	expect("a=one")
	expect("b=same")
	for i := range 3 {
		content := strings.Repeat("x", i*100_000)
		v.write(map[string]string{"a": content, "b": "same"})
		expect("a=" + content)
	}
	// Read in the middle of a swap, files come in any order.
	v.write(map[string]string{"a": "", "b": "", "absent": "here now"})
	missing := map[string]bool{"a=": true, "b=": true, "absent=here now": true}
	for len(missing) > 0 {
		select {
		case got := <-changes:
			if !missing[got] {
				t.Fatalf("told of %s", got)
			}
			delete(missing, got)
		case <-time.After(5 * time.Second):
			t.Fatalf("never told of %v", missing)
		}
	}
	cancel()
	<-done
	if len(changes) > 0 {
		t.Errorf("told of %s, which is no change", <-changes)
	}
}

func TestWatchKeepsTheLastContent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := os.WriteFile(path, []byte("one"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := make(chan string, 100)
	go Watch(ctx, dir, []string{"a"}, func(_ string, content []byte) { changes <- string(content) })
	if got := <-changes; got != "one" {
		t.Fatal(got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tmp"), []byte("two"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "tmp"), path); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-changes:
		if got != "two" {
			t.Errorf("told of %q", got)
		}
	case <-time.After(5 * time.Second):
		t.Error("never told of the new content")
	}
}
