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

// Command egress-proxy forwards the traffic of one proxy Pod into the tailnet.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/tailnet-egress/egress-operator/internal/proxy"
	"github.com/tailnet-egress/egress-operator/internal/proxy/object"
)

func main() {
	if os.Getenv("GOGC") == "" {
		// Little memory matters more here than little time for collecting it: work
		// comes in bursts, and packets are the kernel's.
		debug.SetGCPercent(40)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(log); err != nil {
		log.Error("Could not run the proxy", "err", err)
		os.Exit(1)
	}
}

func run(log *slog.Logger) error {
	options, err := parse(os.Args[1:], os.Getenv)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	options.Log = log
	options.API, err = rest.InClusterConfig()
	if err != nil && !errors.Is(err, rest.ErrNotInCluster) {
		return fmt.Errorf("finding the API server: %w", err)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	stops := make(chan struct{}, 2)
	go func() {
		for range signals {
			stops <- struct{}{}
		}
	}()
	return proxy.Run(context.Background(), options, stops)
}

// parse reads the flags and the Pod's environment.
func parse(args []string, getenv func(string) string) (proxy.Options, error) {
	var o proxy.Options
	var configObject string
	flags := pflag.NewFlagSet("egress-proxy", pflag.ContinueOnError)
	flags.StringVar(&o.ConfigFile, "config", "/etc/egress-proxy/egress-config.json", "Mounted file with the config of the targets.")
	flags.StringVar(&configObject, "config-object", "", "Object with the same config, secret/<name> or configmap/<name>, which is watched.")
	flags.StringVar(&o.AckName, "ack", "", "ConfigMap in which the proxy acknowledges what it programmed.")
	flags.StringVar(&o.SecretName, "secret", "", "Secret in which the proxy publishes its device.")
	flags.StringVar(&o.Socket, "socket", "/var/run/tailscale/tailscaled.sock", "Socket of tailscaled.")
	flags.StringVar(&o.HealthAddress, "health-address", ":9002", "Address of /healthz, /readyz and /metrics.")
	flags.Uint16Var(&o.TailscaledPort, "tailscaled-port", 41641, "UDP port of tailscaled, which is never forwarded.")
	flags.DurationVar(&o.DrainCap, "drain-cap", 20*time.Second, "How long open connections may go on after SIGTERM.")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if configObject != "" {
		var err error
		if o.ConfigObject, err = object.ParseRef(configObject); err != nil {
			return o, fmt.Errorf("flag --config-object: %w", err)
		}
	}
	o.Namespace, o.PodUID = getenv("POD_NAMESPACE"), getenv("POD_UID")
	for s := range strings.SplitSeq(getenv("POD_IPS"), ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return o, fmt.Errorf("environment variable POD_IPS: %w", err)
		}
		o.PodIPs = append(o.PodIPs, ip)
	}
	switch {
	case o.Namespace == "":
		return o, errors.New("environment variable POD_NAMESPACE is not set")
	case len(o.PodIPs) == 0:
		return o, errors.New("environment variable POD_IPS is not set")
	}
	return o, nil
}
