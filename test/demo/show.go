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
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tailnet-egress/egress-operator/test/tailnet"
	"github.com/tailnet-egress/egress-operator/test/testbed"
)

const namespace = "demo"

// deviceDefaults serve echo on port 7 and HTTP on port 80.
var deviceDefaults = tailnet.DeviceOptions{}

// show carries traffic through the samples and prints what there is to see.
func show(ctx context.Context, bed *testbed.Bed) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	fmt.Println("==> a Pod on each node, and config/samples: an annotated Service and an EgressTarget")
	pods, err := bed.Clients(ctx, namespace)
	if err != nil {
		return err
	}
	if err := kubectl(ctx, bed, "-n", namespace, "apply", "-k", filepath.Join(bed.Root(), "config/samples")); err != nil {
		return err
	}

	fmt.Println("==> the device does not exist yet: the targets say so, and clients are refused at once")
	for _, target := range []string{"db", "app-cache"} {
		if err := waitFor(ctx, bed, target, "Resolved", "False"); err != nil {
			return err
		}
	}
	if err := kubectl(ctx, bed, "-n", namespace, "get", "egt"); err != nil {
		return err
	}
	if out, err := bed.Exec(ctx, namespace, pods[0], "dial", "tcp", "db:7"); err == nil {
		return fmt.Errorf("a device that does not exist answered: %s", out)
	}

	fmt.Println("==> the device joins the tailnet")
	if _, err := bed.Tailnet.AddDevice(ctx, "db", deviceDefaults); err != nil {
		return err
	}
	for _, target := range []string{"db", "app-cache"} {
		if err := waitFor(ctx, bed, target, "Ready", "True"); err != nil {
			return err
		}
	}
	for _, what := range [][]string{
		{"get", "egt", "-o", "wide"}, {"get", "service"}, {"-n", testbed.Namespace, "get", "statefulset,service,endpointslice,secret,configmap", "-l", "tailscale.com/managed=true"},
	} {
		if what[0] == "get" {
			what = append([]string{"-n", namespace}, what...)
		}
		if err := kubectl(ctx, bed, what...); err != nil {
			return err
		}
	}
	fmt.Println("==> the rules in a proxy's kernel")
	if err := showRules(ctx); err != nil {
		return err
	}
	return talk(ctx, bed, pods)
}

// talk makes a Pod on each node talk through both targets.
func talk(ctx context.Context, bed *testbed.Bed, pods []string) error {
	fmt.Println("==> a Pod on each node talks to the device, by both names, over TCP and UDP")
	for _, pod := range pods {
		for _, dial := range [][2]string{{"tcp", "db:7"}, {"udp", "db:7"}, {"tcp", "app-cache:6379"}, {"udp", "app-cache:6379"}} {
			out, err := bed.Exec(ctx, namespace, pod, "dial", dial[0], dial[1])
			if err != nil {
				return err
			}
			fmt.Printf("%s %s %-15s %s\n", pod, dial[0], dial[1], strings.TrimSpace(out))
			if !strings.Contains(out, "ok db ping 0") {
				return fmt.Errorf("%s got %q from %s, want the device's answer", pod, out, dial[1])
			}
		}
	}
	return nil
}

// kubectl prints the command and what it says.
func kubectl(ctx context.Context, bed *testbed.Bed, args ...string) error {
	fmt.Println("$ kubectl", strings.Join(args, " "))
	out, err := bed.Kubectl(ctx, "", args...)
	fmt.Print(out)
	return err
}

func waitFor(ctx context.Context, bed *testbed.Bed, target, condition, value string) error {
	_, err := bed.Kubectl(ctx, "", "-n", namespace, "wait", "--timeout=90s", "--for=condition="+condition+"="+value, "egt/"+target)
	if err != nil {
		state, _ := bed.Kubectl(ctx, "", "-n", namespace, "get", "egt", "-o", "yaml")
		pods, _ := bed.Kubectl(ctx, "", "-n", testbed.Namespace, "get", "pods")
		return fmt.Errorf("%w\n%s\n%s", err, state, pods)
	}
	return nil
}

// showRules prints the nftables ruleset of the first proxy that it finds, as seen
// from inside its network namespace.
func showRules(ctx context.Context) error {
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return err
	}
	for _, exe := range processes {
		if program, err := os.Readlink(exe); err != nil || program != "/usr/local/bin/egress-proxy" {
			continue
		}
		ns := filepath.Join(filepath.Dir(exe), "ns/net")
		out, err := exec.CommandContext(ctx, "nsenter", "--net="+ns, "nft", "list", "ruleset").CombinedOutput()
		fmt.Printf("$ nft list ruleset\n%s", out)
		return err
	}
	return fmt.Errorf("no proxy runs on this machine")
}
