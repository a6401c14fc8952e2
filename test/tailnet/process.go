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
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pidDir holds a file per process: its id and when it started.
const pidDir = "pids"

// process is a child whose id is on record while it runs.
type process struct {
	cmd    *exec.Cmd
	record string
	done   chan struct{}
}

// startProcess starts the command with its output appended to a file.
func startProcess(cmd *exec.Cmd, record, logFile string) (*process, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close() //nolint:errcheck // The child has its own descriptor.
	cmd.Stdout, cmd.Stderr = out, out
	// A person's Ctrl-C must not reach the child before its owner ends it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, record: record, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	started, err := startTime(cmd.Process.Pid)
	if err == nil {
		err = os.WriteFile(record, fmt.Appendf(nil, "%d %s\n", cmd.Process.Pid, started), 0o644)
	}
	if err != nil {
		p.stop(syscall.SIGKILL)
		return nil, fmt.Errorf("recording process %d: %w", cmd.Process.Pid, err)
	}
	return p, nil
}

// stop sends the signal, and after 5 seconds SIGKILL, and returns once the
// process is gone.
func (p *process) stop(signal syscall.Signal) {
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	_ = os.Remove(p.record)
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// startTime returns when a process started, in clock ticks since boot: together
// with its id it names the process for good.
func startTime(pid int) (string, error) {
	fields, err := stat(pid)
	if err != nil {
		return "", err
	}
	return fields[startTimeField], nil
}

// Fields of /proc/PID/stat, counted after the name.
const (
	stateField     = 0
	threadsField   = 17
	startTimeField = 19
)

// stat returns the fields of /proc/PID/stat after the name, which is in brackets
// and may hold anything.
func stat(pid int) ([]string, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	if len(fields) <= startTimeField {
		return nil, fmt.Errorf("unexpected form of /proc/%d/stat", pid)
	}
	return fields, nil
}

// Remove ends the processes that a tailnet in that directory left running, and
// removes the directory. Namespaces go with their lab.
func Remove(stateDir string) error {
	records, err := filepath.Glob(filepath.Join(stateDir, pidDir, "*"))
	if err != nil {
		return err
	}
	for _, record := range records {
		if err := endRecorded(record); err != nil {
			return err
		}
	}
	return os.RemoveAll(stateDir)
}

func endRecorded(record string) error {
	raw, err := os.ReadFile(record)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	number, recorded, _ := strings.Cut(strings.TrimSpace(string(raw)), " ")
	pid, err := strconv.Atoi(number)
	if err != nil || pid <= 1 {
		return nil // Half-written when the machine crashed.
	}
	for range 50 {
		fields, err := stat(pid)
		if err != nil || fields[startTimeField] != recorded {
			return nil
		}
		// Its parent crashed, and the machine's init may take its time, or for ever, to
		// reap it. Threads may still run where only the first one ended.
		if fields[stateField] == "Z" && (fields[threadsField] == "0" || fields[threadsField] == "1") {
			return nil
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("process %d of %s did not end", pid, record)
}
