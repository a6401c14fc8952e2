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

// process is a child whose id is on record while it runs.
type process struct {
	name   string
	cmd    *exec.Cmd
	record string
	done   chan struct{}
}

// startProcess starts the command as dirs' process name: its output goes to
// its log, its id on record.
func startProcess(d dirs, name string, cmd *exec.Cmd) (*process, error) {
	out, err := os.OpenFile(d.log(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close() //nolint:errcheck // The child has its own descriptor.
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// A person's Ctrl-C must not reach the child before its owner ends it.
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, record: filepath.Join(d.pids(), name), done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	started, err := startTime(cmd.Process.Pid)
	if err == nil {
		err = os.WriteFile(p.record, fmt.Appendf(nil, "%d %s\n", cmd.Process.Pid, started), 0o644)
	}
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("recording process %s: %w", name, err)
	}
	return p, nil
}

// kill ends the process at once and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
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

// recordedPID returns the id of the process that a record is about, 0 when it
// is not running any more.
func recordedPID(record string) (int, error) {
	raw, err := os.ReadFile(record)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	number, recorded, _ := strings.Cut(strings.TrimSpace(string(raw)), " ")
	pid, err := strconv.Atoi(number)
	if err != nil || pid <= 1 {
		return 0, nil // Half-written when the machine crashed.
	}
	fields, err := stat(pid)
	if err != nil || fields[startTimeField] != recorded {
		return 0, nil
	}
	// Its parent crashed, and the machine's init may take its time, or for ever, to
	// reap it. Threads may still run where only the first one ended.
	if fields[stateField] == "Z" && (fields[threadsField] == "0" || fields[threadsField] == "1") {
		return 0, nil
	}
	return pid, nil
}

// endRecorded kills the process that a record is about and waits for its end.
func endRecorded(record string) error {
	for range 100 {
		pid, err := recordedPID(record)
		if err != nil || pid == 0 {
			return err
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("the process of %s did not end", record)
}
