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

package netlab

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestHostsReachEachOtherAndLeaveNothing(t *testing.T) {
	Require(t)
	lab, err := New("nltest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lab.Close() })
	a, err := lab.Host("a", netip.MustParsePrefix("192.0.2.1/24"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := lab.Host("b", netip.MustParsePrefix("192.0.2.2/24"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := b.Listen("tcp", "192.0.2.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	conn, err := a.Dial(ctx, "tcp", "192.0.2.2:80")
	if err != nil {
		t.Fatalf("a cannot reach b: %v", err)
	}
	_ = conn.Close()
	out, err := a.Command(ctx, "ip", "-br", "addr").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "192.0.2.1/24") {
		t.Fatalf("a command inside a sees %s, %v", out, err)
	}

	if err := lab.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := exec.Command("ip", "netns").CombinedOutput()
	if err != nil || strings.Contains(string(names), "nltest-") {
		t.Errorf("after Close: %s, %v", names, err)
	}
	if _, err := os.Stat("/run/netns/nltest-a"); err == nil {
		t.Error("the namespace's file is still there")
	}
}

func TestNoThreadKeepsANamespace(t *testing.T) {
	Require(t)
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	host, err := NewHost("nlthr-host")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	// So many at once that the main thread is among those asked.
	var entered, done sync.WaitGroup
	release := make(chan struct{})
	for range 50 {
		entered.Add(1)
		done.Go(func() {
			err := host.Do(func() error {
				entered.Done()
				<-release
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	entered.Wait()
	close(release)
	done.Wait()
	var elsewhere []string
	for range 50 {
		elsewhere = threadsOutside(t, own)
		if len(elsewhere) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("threads still in the namespace: %v", elsewhere)
}

// threadsOutside returns this process's threads in other network namespaces
// than the one given.
func threadsOutside(t *testing.T, own string) []string {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, task := range tasks {
		// A thread that has ended meanwhile is in none.
		if got, err := os.Readlink(task); err == nil && got != own {
			out = append(out, task)
		}
	}
	return out
}
