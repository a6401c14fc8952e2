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
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(record, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, content := range []string{"", "1 1", "half", fmt.Sprintf("%d %s0\n", cmd.Process.Pid, started)} {
		write(content)
		if pid, err := recordedPID(record); err != nil || pid != 0 {
			t.Errorf("the record %q is about process %d, %v", content, pid, err)
		}
	}
	write(fmt.Sprintf("%d %s\n", cmd.Process.Pid, started))
	if pid, err := recordedPID(record); err != nil || pid != cmd.Process.Pid {
		t.Fatalf("the record is about process %d, %v", pid, err)
	}
	before := time.Now()
	if err := endRecorded(record); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(before); took > 5*time.Second {
		t.Errorf("its end took %s", took)
	}
	fields, err := stat(cmd.Process.Pid)
	if err != nil || fields[stateField] != "Z" {
		t.Errorf("the process was to be dead and not reaped: %v, %v", fields, err)
	}
}
