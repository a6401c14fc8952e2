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

package ack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tailnet-egress/egress-operator/internal/proxy/object"
)

// server is an API server with one object, which tells of every change after a
// delay.
type server struct {
	mu      sync.Mutex
	keeper  *Keeper
	there   bool
	uid     int
	version int
	data    map[string][]byte
	fails   bool
	writes  []string
	tries   int
}

func (s *server) Patch(_ context.Context, data map[string][]byte) (object.Content, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	if s.fails || !s.there {
		return object.Content{}, errors.New("no such object, or no such server")
	}
	maps.Copy(s.data, data)
	s.version++
	keys := slices.Sorted(maps.Keys(data))
	for i, key := range keys {
		keys[i] = key + "=" + string(data[key])
	}
	s.writes = append(s.writes, strings.Join(keys, " "))
	s.tell()
	return s.content(), nil
}

func (s *server) content() object.Content {
	return object.Content{UID: types.UID(fmt.Sprint(s.uid)), ResourceVersion: fmt.Sprint(s.version), Data: maps.Clone(s.data)}
}

func (s *server) tell() {
	if !s.there {
		go func() { time.Sleep(30 * time.Millisecond); s.keeper.Saw(nil) }()
		return
	}
	c := s.content()
	go func() { time.Sleep(30 * time.Millisecond); s.keeper.Saw(&c) }()
}

func (s *server) do(f func()) {
	s.mu.Lock()
	f()
	s.version++
	s.tell()
	s.mu.Unlock()
	synctest.Wait()
}

func (s *server) create(data map[string][]byte) {
	s.do(func() { s.there, s.uid, s.data = true, s.uid+1, data })
}

func (s *server) expect(t *testing.T, within time.Duration, writes ...string) {
	t.Helper()
	time.Sleep(within)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.writes, writes) {
		t.Errorf("wrote %q, want %q", s.writes, writes)
	}
	s.writes = nil
}

func run(t *testing.T, f func(k *Keeper, s *server)) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		s.keeper = NewKeeper(s, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.keeper.Run(ctx); close(done) }()
		f(s.keeper, s)
		cancel()
		<-done
		time.Sleep(time.Second) // The watch is late.
	})
}

func value(s string) map[string][]byte { return map[string][]byte{"ack.json": []byte(s)} }

func TestWritesOnlyWhatDiffers(t *testing.T) {
	run(t, func(k *Keeper, s *server) {
		s.create(map[string][]byte{"other": []byte("x")})
		time.Sleep(time.Second)
		k.Want(value("1"))
		s.expect(t, time.Second, "ack.json=1")
		k.Want(value("1"))
		s.expect(t, time.Hour)
		s.do(func() { s.data["other"] = []byte("y") })
		s.expect(t, time.Hour)
		k.Want(map[string][]byte{"ack.json": []byte("1"), "second": []byte("2")})
		s.expect(t, time.Second, "second=2")
	})
}

func TestWritesNothingThatIsThereAlready(t *testing.T) {
	run(t, func(k *Keeper, s *server) {
		s.create(value("1"))
		time.Sleep(time.Second)
		k.Want(value("1"))
		s.expect(t, time.Hour)
	})
}

func TestWritesWithoutAWatch(t *testing.T) {
	run(t, func(k *Keeper, s *server) {
		s.mu.Lock()
		s.there, s.data = true, map[string][]byte{}
		s.mu.Unlock()
		k.Want(value("1"))
		s.expect(t, 10*time.Millisecond, "ack.json=1")
	})
}

func TestManyChangesAreFewWrites(t *testing.T) {
	run(t, func(k *Keeper, s *server) {
		s.create(map[string][]byte{})
		time.Sleep(time.Second)
		for i := range 1000 {
			k.Want(value(fmt.Sprint(i)))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.writes); n > 12 || s.writes[n-1] != "ack.json=999" {
			t.Errorf("%d writes in a second, the last is %s", n, s.writes[n-1])
		}
	})
}

func TestPutsBackWhatOthersChange(t *testing.T) {
	run(t, func(k *Keeper, s *server) {
		s.create(map[string][]byte{})
		k.Want(value("1"))
		s.expect(t, time.Second, "ack.json=1")
		s.do(func() { s.data["ack.json"] = []byte("forged") })
		s.expect(t, time.Second, "ack.json=1")
		s.do(func() { delete(s.data, "ack.json") })
		s.expect(t, time.Second, "ack.json=1")
	})
}

func TestComesBackAfterTheObjectWasDeleted(t *testing.T) {
	run(t, func(k *Keeper, s *server) {
		s.create(map[string][]byte{})
		k.Want(value("1"))
		s.expect(t, time.Second, "ack.json=1")
		s.do(func() { s.there = false })
		s.expect(t, 10*time.Minute)
		s.do(func() {
			if s.tries > 200 {
				t.Errorf("tried %d times in 10 minutes", s.tries)
			}
		})
		s.create(map[string][]byte{})
		s.expect(t, 50*time.Millisecond, "ack.json=1")
	})
}

func TestTriesOnWhileTheServerIsAway(t *testing.T) {
	run(t, func(k *Keeper, s *server) {
		s.create(map[string][]byte{})
		time.Sleep(time.Second)
		s.do(func() { s.fails = true })
		k.Want(value("1"))
		time.Sleep(2 * time.Minute)
		k.Want(value("2"))
		s.mu.Lock()
		s.fails = false
		s.mu.Unlock()
		s.expect(t, maxPause, "ack.json=2")
	})
}

func TestFillsOnlyWhatIsAbsent(t *testing.T) {
	run(t, func(k *Keeper, s *server) {
		s.create(map[string][]byte{"_profiles": []byte("of tailscaled")})
		time.Sleep(time.Second)
		k.Fill(map[string][]byte{"_profiles": []byte("old"), "_machinekey": []byte("m")})
		s.expect(t, time.Second, "_machinekey=m")
		s.do(func() { s.data["_machinekey"] = []byte("another") })
		s.expect(t, time.Hour)
	})
}

func TestStateSurvivesTheSecret(t *testing.T) {
	var s State
	saw := func(uid, data string) string {
		c := &object.Content{UID: types.UID(uid), Data: map[string][]byte{}}
		for key := range strings.FieldsSeq(data) {
			c.Data[key] = []byte("v")
		}
		return strings.Join(slices.Sorted(maps.Keys(s.Saw(c))), " ")
	}
	if got := saw("1", "egress-config.json device_id"); got != "" {
		t.Errorf("no state is %q", got)
	}
	if got := saw("1", "egress-config.json _machinekey _profiles profile-1"); got != "_machinekey _profiles profile-1" {
		t.Errorf("state is %q", got)
	}
	if got := saw("1", "_machinekey _profiles profile-2"); got != "_machinekey _profiles profile-2" {
		t.Errorf("after tailscaled removed a key, state is %q", got)
	}
	if got := strings.Join(slices.Sorted(maps.Keys(s.Saw(nil))), " "); got != "_machinekey _profiles profile-2" {
		t.Errorf("without a Secret, state is %q", got)
	}
	if got := saw("2", "tailscaled.json _profiles"); got != "_machinekey _profiles profile-2" {
		t.Errorf("of another Secret, state is %q", got)
	}
}
