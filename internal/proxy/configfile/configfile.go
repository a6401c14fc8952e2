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

// Package configfile follows files of a directory that the kubelet keeps up to
// date.
package configfile

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// reread is how often the files are read though nothing told of a change: where
// inotify is exhausted, or the directory is not there yet.
const reread = 30 * time.Second

// Watch calls changed with the content of each of the named files of dir that
// exists, first and whenever it is another, until ctx ends. A file that vanishes
// keeps its last content. It calls from one goroutine: its own.
//
// The kubelet swaps a symbolic link in the directory, so the directory is
// watched and not the files.
func Watch(ctx context.Context, dir string, names []string, changed func(name string, content []byte)) {
	last := make(map[string][]byte, len(names))
	read := func() {
		for _, name := range names {
			content, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				continue
			}
			if known, seen := last[name]; !seen || !bytes.Equal(known, content) {
				last[name] = content
				changed(name, content)
			}
		}
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		// Without inotify the ticks below have to do.
		watcher = &fsnotify.Watcher{}
	} else {
		defer watcher.Close() //nolint:errcheck // Nothing was written.
	}
	ticker := time.NewTicker(reread)
	defer ticker.Stop()
	for {
		if err == nil && len(watcher.WatchList()) == 0 {
			// The directory may not be there yet; the next tick tries again.
			_ = watcher.Add(dir)
		}
		read()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-watcher.Events:
		case <-watcher.Errors:
		}
	}
}
