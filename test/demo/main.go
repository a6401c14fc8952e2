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

// Command demo shows the product at work on a real cluster and a real tailnet.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/tailnet-egress/egress-operator/test/testbed"
)

const usage = `usage:
  demo run                        bring everything up, carry traffic, remove everything
  demo up                         bring everything up and leave it running
  demo down                       end what "up" left running
  demo device list
  demo device add|remove|recreate|expire|renew NAME
  demo device routes NAME [CIDR ...]     advertise and approve subnet routes
  demo device host NAME HOST ADDRESS/BITS  a host behind the device`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	if args[0] == "device" {
		return device(ctx, args[1:])
	}
	if len(args) != 1 {
		return errors.New(usage)
	}
	if why := testbed.Missing(); why != "" {
		return errors.New(why)
	}
	switch args[0] {
	case "run":
		return runDemo(ctx)
	case "up":
		return up(ctx)
	case "serve":
		return serve(ctx)
	case "down":
		return down(ctx)
	}
	return errors.New(usage)
}

func runDemo(ctx context.Context) error {
	bed, err := testbed.Up(ctx, os.Stdout)
	if err != nil {
		return err
	}
	err = show(ctx, bed)
	fmt.Println("==> removing everything")
	if err := errors.Join(err, bed.Close()); err != nil {
		return err
	}
	fmt.Println("demo: OK")
	return nil
}
