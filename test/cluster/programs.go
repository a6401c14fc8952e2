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
	"context"
	"fmt"
	"time"
)

// startTimeout bounds each wait of a start; a fifth of it is normal on a slow
// machine.
const startTimeout = 3 * time.Minute

// run starts a program of the control plane.
func (c *Cluster) run(name string, args ...string) error {
	if c.process(name) != nil {
		return fmt.Errorf("%s is running", name)
	}
	cmd := c.nodes[0].Host.Command(context.Background(), c.bin(name), args...)
	p, err := startProcess(c.dirs, name, cmd)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes[name] = p
	return nil
}

// process returns a running program of the control plane, or nil.
func (c *Cluster) process(name string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.processes[name]; p != nil && p.running() {
		return p
	}
	return nil
}

// kill ends programs of the control plane.
func (c *Cluster) kill(names ...string) {
	for _, name := range names {
		c.mu.Lock()
		p := c.processes[name]
		delete(c.processes, name)
		c.mu.Unlock()
		if p != nil {
			p.kill()
		}
	}
}

// waitFor calls check until it succeeds. It gives up when p ends, which may be
// nil, or the context, which gets an end where it has none.
func (c *Cluster) waitFor(ctx context.Context, what string, p *process, check func(context.Context) error) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, startTimeout)
		defer cancel()
	}
	var ended <-chan struct{}
	if p != nil {
		ended = p.done
	}
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w, last: %w", what, ctx.Err(), err)
		case <-ended:
			return fmt.Errorf("waiting for %s: %s ended, see %s", what, p.name, c.dirs.log(p.name))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *Cluster) say(format string, args ...any) {
	_, _ = fmt.Fprintf(c.options.Log, "%5.1fs %s\n", time.Since(c.started).Seconds(), fmt.Sprintf(format, args...))
}
