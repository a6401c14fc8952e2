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

// Package ack keeps values of the proxy in API objects that others made: its
// acknowledgement in a ConfigMap, its device in a Secret.
package ack

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/tailnet-egress/egress-operator/internal/proxy/object"
)

const (
	// spacing bounds the writes to ten a second; changes in between become one.
	spacing = 100 * time.Millisecond
	// Pauses between attempts while a write fails.
	minPause = 200 * time.Millisecond
	maxPause = 5 * time.Second
)

// Object is an object of the API; Patch sets keys of it.
type Object interface {
	Patch(ctx context.Context, data map[string][]byte) (object.Content, error)
}

// Keeper makes one object hold values. It writes only what differs, as far as it
// was told what the object holds, and never makes the object.
type Keeper struct {
	object Object
	log    *slog.Logger
	// changed tells of new values, back of an object that is there.
	changed, back chan struct{}

	mu sync.Mutex
	// want is kept against any other value; fill is for keys that are not there.
	want, fill map[string][]byte
	// known is the last known content; nil where that is not known.
	known *object.Content
}

// NewKeeper keeps nothing yet.
func NewKeeper(o Object, log *slog.Logger) *Keeper {
	return &Keeper{object: o, log: log, changed: make(chan struct{}, 1), back: make(chan struct{}, 1)}
}

// Want replaces the values to keep.
func (k *Keeper) Want(data map[string][]byte) {
	k.mu.Lock()
	k.want = data
	k.mu.Unlock()
	signal(k.changed)
}

// Fill replaces the values for keys that the object does not have.
func (k *Keeper) Fill(data map[string][]byte) {
	k.mu.Lock()
	k.fill = data
	k.mu.Unlock()
	signal(k.changed)
}

// Saw is told what the object holds; nil where it does not exist.
func (k *Keeper) Saw(c *object.Content) {
	k.mu.Lock()
	if c == nil || !k.older(c) {
		k.known = c
	}
	k.mu.Unlock()
	signal(k.changed)
	if c != nil {
		signal(k.back)
	}
}

// older is whether c was known before: a watch tells late of our own writes.
func (k *Keeper) older(c *object.Content) bool {
	if k.known == nil || k.known.UID != c.UID {
		return false
	}
	ours, err := strconv.ParseUint(k.known.ResourceVersion, 10, 64)
	theirs, err2 := strconv.ParseUint(c.ResourceVersion, 10, 64)
	return err == nil && err2 == nil && theirs < ours
}

// Run writes until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	pause := minPause
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.changed:
		}
		for {
			data := k.missing()
			if len(data) == 0 {
				break
			}
			drain(k.back)
			content, err := k.object.Patch(ctx, data)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				k.Saw(&content)
				pause, failing = minPause, false
				if !sleep(ctx, spacing, nil) {
					return
				}
				continue
			}
			if !failing {
				k.log.Info("Could not write, trying on", "err", err)
				failing = true
			}
			if !sleep(ctx, pause, k.back) {
				return
			}
			pause = min(2*pause, maxPause)
		}
	}
}

// missing is what the object lacks.
func (k *Keeper) missing() map[string][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil {
		missing := maps.Clone(k.want)
		return missing
	}
	missing := map[string][]byte{}
	for key, value := range k.want {
		if have, found := k.known.Data[key]; !found || !bytes.Equal(have, value) {
			missing[key] = value
		}
	}
	for key, value := range k.fill {
		if _, found := k.known.Data[key]; !found {
			missing[key] = value
		}
	}
	return missing
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func drain(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// sleep is false when ctx ended; early ends it early.
func sleep(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-early:
	}
	return true
}
