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

// Package object reads, watches and patches single API objects by name: Secrets
// and ConfigMaps. It knows no other types, so that a proxy stays small.
package object

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

const (
	// requestTimeout ends a request that nobody answers.
	requestTimeout = 10 * time.Second
	// watchTime is how long one watch lasts before it is renewed.
	watchTime = 10 * time.Minute
	// Pauses between attempts while the API server does not answer.
	minPause = 200 * time.Millisecond
	maxPause = 5 * time.Second
)

// Kind is the plural of a kind, as in the API's paths.
type Kind string

// The kinds.
const (
	Secret    Kind = "secrets"
	ConfigMap Kind = "configmaps"
)

// Ref names an object of the client's namespace.
type Ref struct {
	Kind Kind
	Name string
}

// ParseRef reads secret/<name> or configmap/<name>.
func ParseRef(s string) (Ref, error) {
	kind, name, _ := strings.Cut(s, "/")
	kinds := map[string]Kind{"secret": Secret, "configmap": ConfigMap}
	if kinds[kind] == "" || name == "" || strings.Contains(name, "/") {
		return Ref{}, fmt.Errorf("object %q must be secret/<name> or configmap/<name>", s)
	}
	return Ref{Kind: kinds[kind], Name: name}, nil
}

// Content is one version of an object.
type Content struct {
	UID             types.UID
	ResourceVersion string
	Data            map[string][]byte
}

// Client of one namespace.
type Client struct {
	rest      rest.Interface
	codec     runtime.ParameterCodec
	namespace string
	log       *slog.Logger
}

// New makes a client from a config such as rest.InClusterConfig, which takes the
// API server's address from the environment and so needs no DNS.
func New(config *rest.Config, namespace string, log *slog.Logger) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.UserAgent = "egress-proxy"
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making an API client: %w", err)
	}
	return &Client{rest: client, codec: runtime.NewParameterCodec(scheme), namespace: namespace, log: log}, nil
}

// Watch calls seen with every version of the object, nil where there is none,
// until ctx ends; it reconnects by itself. Versions may be left out and repeated.
func (c *Client) Watch(ctx context.Context, ref Ref, seen func(*Content)) {
	pause := minPause
	told := false
	for ctx.Err() == nil {
		worked, err := c.follow(ctx, ref, seen)
		switch {
		case worked:
			pause, told = minPause, false
		case err != nil && !told && ctx.Err() == nil:
			c.log.Info("Could not watch an object, trying on", "kind", ref.Kind, "name", ref.Name, "err", err)
			told = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)/2):
		}
		pause = min(2*pause, maxPause)
	}
}

// follow lists the object and watches it from there. It returns when the watch
// ends and whether there was one.
func (c *Client) follow(ctx context.Context, ref Ref, seen func(*Content)) (worked bool, err error) {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, ref.Name).String()}
	version, err := c.list(ctx, ref, options, seen)
	if err != nil {
		return false, err
	}
	seconds := int64(watchTime / time.Second)
	options.Watch, options.ResourceVersion, options.TimeoutSeconds, options.AllowWatchBookmarks = true, version, &seconds, true
	stream, err := c.rest.Get().Namespace(c.namespace).Resource(string(ref.Kind)).VersionedParams(&options, c.codec).Watch(ctx)
	if err != nil {
		return false, err
	}
	defer stream.Stop()
	for event := range stream.ResultChan() {
		switch event.Type {
		case watch.Added, watch.Modified:
			if content, ok := contentOf(event.Object); ok {
				seen(&content)
			}
		case watch.Deleted:
			seen(nil)
		case watch.Error:
			// Most likely the version is too old: list again.
			return true, nil
		}
	}
	return true, nil
}

func (c *Client) list(ctx context.Context, ref Ref, options metav1.ListOptions, seen func(*Content)) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	result := c.rest.Get().Namespace(c.namespace).Resource(string(ref.Kind)).VersionedParams(&options, c.codec).Do(ctx)
	object, err := result.Get()
	if err != nil {
		return "", err
	}
	var items []runtime.Object
	switch list := object.(type) {
	case *corev1.SecretList:
		version = list.ResourceVersion
		for i := range list.Items {
			items = append(items, &list.Items[i])
		}
	case *corev1.ConfigMapList:
		version = list.ResourceVersion
		for i := range list.Items {
			items = append(items, &list.Items[i])
		}
	default:
		return "", fmt.Errorf("listing %s gave a %T", ref.Kind, object)
	}
	if len(items) == 0 {
		seen(nil)
	}
	for _, item := range items {
		if content, ok := contentOf(item); ok {
			seen(&content)
		}
	}
	return version, nil
}

func contentOf(object runtime.Object) (Content, bool) {
	switch o := object.(type) {
	case *corev1.Secret:
		return Content{UID: o.UID, ResourceVersion: o.ResourceVersion, Data: o.Data}, true
	case *corev1.ConfigMap:
		data := make(map[string][]byte, len(o.Data)+len(o.BinaryData))
		maps.Copy(data, o.BinaryData)
		for key, value := range o.Data {
			data[key] = []byte(value)
		}
		return Content{UID: o.UID, ResourceVersion: o.ResourceVersion, Data: data}, true
	}
	return Content{}, false
}

// Patch sets keys of an object that exists and leaves the others.
func (c *Client) Patch(ctx context.Context, ref Ref, data map[string][]byte) (Content, error) {
	values := make(map[string]any, len(data))
	for key, value := range data {
		values[key] = value // Encodes in base64.
		if ref.Kind == ConfigMap {
			values[key] = string(value)
		}
	}
	patch, err := json.Marshal(map[string]any{"data": values})
	if err != nil {
		return Content{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	object, err := c.rest.Patch(types.MergePatchType).Namespace(c.namespace).Resource(string(ref.Kind)).Name(ref.Name).Body(patch).Do(ctx).Get()
	if err != nil {
		return Content{}, fmt.Errorf("patching %s %s: %w", ref.Kind, ref.Name, err)
	}
	content, ok := contentOf(object)
	if !ok {
		return Content{}, errors.New("the API server answered a patch with another kind of object")
	}
	return content, nil
}
