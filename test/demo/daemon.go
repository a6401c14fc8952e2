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

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tailnet-egress/egress-operator/test/testbed"
)

// Files of the process that keeps the testbed running, beside its state.
const (
	pidFile = testbed.StateDir + ".pid"
	logFile = testbed.StateDir + ".log"
	socket  = testbed.StateDir + "/demo.sock"
	// isUp is the line that ends the log of a testbed that came up.
	isUp = "demo: UP"
)

// up starts a process that keeps the testbed running and shows its progress until
// it is up.
func up(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // The child has it open.
	child := exec.Command(self, "serve")
	child.Stdout, child.Stderr = log, log
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	return follow(ctx, child, ended)
}

// follow copies the log until the child is up; an interrupt ends the child.
func follow(ctx context.Context, child *exec.Cmd, ended <-chan error) error {
	file, err := os.Open(logFile)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // It was only read.
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadString('\n')
		fmt.Print(line)
		if strings.HasPrefix(line, isUp) {
			return nil
		}
		if err == nil {
			continue
		}
		select {
		case err := <-ended:
			rest, _ := io.ReadAll(lines)
			fmt.Print(string(rest))
			return fmt.Errorf("the testbed did not come up: %w", err)
		case <-ctx.Done():
			_ = child.Process.Signal(syscall.SIGTERM)
			return errors.Join(ctx.Err(), <-ended)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// serve keeps a testbed running until it is told to stop.
func serve(ctx context.Context) error {
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	defer os.Remove(pidFile) //nolint:errcheck // "down" copes with a stale one.
	bed, err := testbed.Up(ctx, os.Stdout)
	if err != nil {
		return err
	}
	err = stay(ctx, bed)
	if ctx.Err() != nil {
		// Being told to stop is no failure.
		err = nil
	}
	return errors.Join(err, bed.Close())
}

// stay brings the samples up and serves the tailnet's controls until the end.
func stay(ctx context.Context, bed *testbed.Bed) error {
	if _, err := bed.Tailnet.AddDevice(ctx, "db", deviceDefaults); err != nil {
		return err
	}
	if _, err := bed.Clients(ctx, namespace); err != nil {
		return err
	}
	if _, err := bed.Kubectl(ctx, "", "-n", namespace, "apply", "-k", filepath.Join(bed.Root(), "config/samples")); err != nil {
		return err
	}
	for _, target := range []string{"db", "app-cache"} {
		if err := waitFor(ctx, bed, target, "Ready", "True"); err != nil {
			return err
		}
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: bed.Tailnet.Handler(), ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(listener) //nolint:errcheck // It ends with the process.
	printHelp(bed)
	<-ctx.Done()
	return server.Close()
}

func printHelp(bed *testbed.Bed) {
	fmt.Printf(`
The testbed is up: a cluster of two nodes, a tailnet (%s) with the device
"db" (echo on port 7 TCP and UDP, HTTP on port 80), the operator, and
config/samples in the namespace %s with a Pod on each node.

  export KUBECONFIG=%s
  alias kubectl=%s
  kubectl -n %s get egt,service
  kubectl -n %s exec client-%s -- /testpod dial --count 3 tcp db:7
  go run ./test/demo device recreate db        # another machine, the same name
  go run ./test/demo device add later
  make demo-down                               # ends and removes all of it

%s
`, bed.Tailnet.Domain(), namespace, bed.Cluster.Kubeconfig(), bed.KubectlPath(), namespace, namespace, bed.Cluster.Nodes()[0].Name, isUp)
}

// down ends the process that keeps the testbed, then removes what a crashed one
// may have left.
func down(ctx context.Context) error {
	data, err := os.ReadFile(pidFile)
	if errors.Is(err, os.ErrNotExist) {
		fmt.Println("no testbed is running; removing what one may have left")
		return testbed.Remove()
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("%s: %w", pidFile, err)
	}
	if command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.HasSuffix(command, []byte("\x00serve\x00")) {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		for syscall.Kill(pid, 0) == nil {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	if err := testbed.Remove(); err != nil {
		return err
	}
	_, _ = os.Remove(pidFile), os.Remove(logFile)
	fmt.Println("demo: DOWN")
	return nil
}

// device changes the tailnet of a testbed that is up, and prints what it says.
func device(ctx context.Context, args []string) error {
	method, path, body, err := deviceRequest(args)
	if err != nil {
		return err
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://testbed"+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("is a testbed up? (make demo-up): %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // It was read to its end.
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return errors.New(response.Status)
	}
	return nil
}

func deviceRequest(args []string) (method, path string, body map[string]any, err error) {
	switch {
	case len(args) == 1 && args[0] == "list":
		return http.MethodGet, "/devices", nil, nil
	case len(args) == 2 && args[0] == "add":
		return http.MethodPost, "/devices", map[string]any{"name": args[1]}, nil
	case len(args) == 2 && args[0] == "remove":
		return http.MethodDelete, "/devices/" + args[1], nil, nil
	case len(args) == 2 && (args[0] == "recreate" || args[0] == "expire" || args[0] == "renew"):
		return http.MethodPost, "/devices/" + args[1] + "/" + args[0], nil, nil
	case len(args) >= 2 && args[0] == "routes":
		return http.MethodPost, "/devices/" + args[1] + "/routes", map[string]any{"prefixes": append([]string{}, args[2:]...)}, nil
	case len(args) == 4 && args[0] == "host":
		return http.MethodPost, "/devices/" + args[1] + "/subnet-hosts", map[string]any{"name": args[2], "address": args[3]}, nil
	}
	return "", "", nil, errors.New(usage)
}
