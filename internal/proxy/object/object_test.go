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

package object

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailnet-egress/egress-operator/internal/proxy/object/objecttest"
)

func TestParseRef(t *testing.T) {
	for s, want := range map[string]Ref{
		"secret/ts-db-0": {Secret, "ts-db-0"}, "configmap/pg-egress-config": {ConfigMap, "pg-egress-config"},
	} {
		if got, err := ParseRef(s); err != nil || got != want {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "secret", "secret/", "pod/x", "secret/ns/x", "/x"} {
		if got, err := ParseRef(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

type follower struct {
	t    *testing.T
	seen chan *Content
}

func (f follower) expect(check func(*Content) bool) {
	f.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case c := <-f.seen:
			if check(c) {
				return
			}
		case <-deadline:
			f.t.Fatal("never seen")
		}
	}
}

func (f follower) value(want string) {
	f.t.Helper()
	f.expect(func(c *Content) bool { return c != nil && string(c.Data["key"]) == want })
}

func (f follower) nothing() {
	f.t.Helper()
	f.expect(func(c *Content) bool { return c == nil })
}

func TestWatchAndPatch(t *testing.T) {
	for _, kind := range []Kind{Secret, ConfigMap} {
		t.Run(string(kind), func(t *testing.T) {
			server := objecttest.New()
			serving := httptest.NewServer(server)
			defer serving.CloseClientConnections()
			client, err := New(&rest.Config{Host: serving.URL, QPS: -1}, "tailscale", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			ref := Ref{kind, "mine"}
			key := string(kind) + "/mine"
			if _, err := client.Patch(t.Context(), ref, map[string][]byte{"key": []byte("x")}); err == nil {
				t.Error("patched an object that does not exist")
			}
			server.Put(string(kind)+"/other", map[string]string{"key": "of another"})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := follower{t, make(chan *Content, 100)}
			go client.Watch(ctx, ref, func(c *Content) { f.seen <- c })
			f.nothing()
			server.Put(key, map[string]string{"key": "1", "rest": "stays"})
			f.value("1")
			server.Set(key, "key", "2")
			f.value("2")
			server.Delete(key)
			f.nothing()
			server.Put(key, map[string]string{"key": "3", "rest": "stays"})
			f.value("3")
			content, err := client.Patch(t.Context(), ref, map[string][]byte{"key": []byte("4\x00")})
			if err != nil || string(content.Data["key"]) != "4\x00" || content.UID == "" || content.ResourceVersion == "" {
				t.Errorf("%+v, %v", content, err)
			}
			if got := server.Get(key); got["rest"] != "stays" || got["key"] != "4\x00" {
				t.Errorf("after a patch: %q", got)
			}
			f.value("4\x00")
			server.SetAway(true)
			server.Set(key, "key", "5")
			time.Sleep(time.Second)
			if _, err := client.Patch(t.Context(), ref, map[string][]byte{"key": []byte("x")}); err == nil {
				t.Error("patched on a server that is away")
			}
			server.SetAway(false)
			f.value("5")
			if lists := server.Lists(); lists > 20 {
				t.Errorf("listed %d times", lists)
			}
		})
	}
}
