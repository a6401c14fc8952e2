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

package tailnet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestARecordedProcessIsEndedThoughNobodyReapsIt(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	started, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(t.TempDir(), "sleep")
	end := func(content string) {
		t.Helper()
		if err := os.WriteFile(record, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		if err := endRecorded(record); err != nil {
			t.Error(err)
		}
		if took := time.Since(before); took > 2*time.Second {
			t.Errorf("the end of %q took %s", content, took)
		}
	}
	state := func() string {
		t.Helper()
		fields, err := stat(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return fields[stateField]
	}
	for _, other := range []string{"", "1 1", "half", fmt.Sprintf("%d %s0\n", cmd.Process.Pid, started)} {
		end(other)
		if state() == "Z" {
			t.Fatalf("the record %q ended a process that it is not about", other)
		}
	}
	end(fmt.Sprintf("%d %s\n", cmd.Process.Pid, started))
	if got := state(); got != "Z" {
		t.Errorf("the process was to be dead and not reaped, and is in state %s", got)
	}
}
