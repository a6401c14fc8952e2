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

// Command testpod is what the tests run inside Pods: a client that dials and
// reports, and servers to be dialled.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const usage = `usage:
  testpod serve                       sleep until told to stop
  testpod echo NAME ADDRESS           answer "NAME <line>" over TCP and UDP
  testpod dial [flags] tcp|udp ADDR   send a line on a fresh connection, print what comes back
  testpod flow [flags] tcp|udp ADDR   send lines on one connection
  testpod lookup [flags] NAME         resolve a name
  testpod get [flags] URL             fetch a URL
  testpod put [flags] BYTES URL       upload so many bytes`

// options are the flags of every client.
type options struct {
	count    int
	interval time.Duration
	timeout  time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	var o options
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.IntVar(&o.count, "count", 1, "how many attempts")
	flags.DurationVar(&o.interval, "interval", 100*time.Millisecond, "from one attempt to the next")
	flags.DurationVar(&o.timeout, "timeout", 2*time.Second, "of one attempt")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	rest := flags.Args()
	switch {
	case args[0] == "serve" && len(rest) == 0:
		<-ctx.Done()
		return nil
	case args[0] == "echo" && len(rest) == 2:
		return echo(ctx, rest[0], rest[1])
	case args[0] == "dial" && len(rest) == 2:
		return o.repeat(ctx, func(ctx context.Context, i int) (string, error) {
			return dial(ctx, rest[0], rest[1], fmt.Sprintf("ping %d", i))
		})
	case args[0] == "flow" && len(rest) == 2:
		return o.flow(ctx, rest[0], rest[1])
	case args[0] == "lookup" && len(rest) == 1:
		return o.repeat(ctx, func(ctx context.Context, _ int) (string, error) {
			addrs, err := net.DefaultResolver.LookupHost(ctx, rest[0])
			return strings.Join(addrs, " "), err
		})
	case args[0] == "get" && len(rest) == 1:
		return o.repeat(ctx, func(ctx context.Context, _ int) (string, error) {
			return transfer(ctx, http.MethodGet, rest[0], nil, 0)
		})
	case args[0] == "put" && len(rest) == 2:
		var size int64
		if _, err := fmt.Sscan(rest[0], &size); err != nil {
			return fmt.Errorf("bytes %q: %w", rest[0], err)
		}
		return o.repeat(ctx, func(ctx context.Context, _ int) (string, error) {
			return transfer(ctx, http.MethodPut, rest[1], io.LimitReader(zeros{}, size), size)
		})
	}
	return errors.New(usage)
}

// repeat makes the attempts and prints a line for each: when, how long it took,
// ok or failed, and what came of it. It fails where one of them failed.
func (o options) repeat(ctx context.Context, attempt func(context.Context, int) (string, error)) error {
	failed := 0
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	for i := range o.count {
		started := time.Now()
		limited, cancel := context.WithTimeout(ctx, o.timeout)
		got, err := attempt(limited, i)
		cancel()
		failed += print(started, got, err)
		if i == o.count-1 {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d attempts failed", failed, o.count)
	}
	return nil
}

// flow sends a line at every interval from one socket and prints the answers as
// they come; over UDP it goes on whether or not any comes.
func (o options) flow(ctx context.Context, network, address string) error {
	conn, err := (&net.Dialer{Timeout: o.timeout}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // The process ends.
	go func() {
		buf := make([]byte, 2048)
		for {
			n, err := conn.Read(buf)
			if err != nil && (network == "tcp" || errors.Is(err, net.ErrClosed)) {
				return
			}
			for line := range strings.Lines(string(buf[:n])) {
				print(time.Now(), strings.TrimSpace(line), nil)
			}
		}
	}()
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	for i := range o.count {
		if _, err := fmt.Fprintf(conn, "line %d\n", i); err != nil {
			print(time.Now(), "", err)
			if network == "tcp" {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
	return nil
}

// print writes one line and returns 1 for a failure, else 0.
func print(at time.Time, got string, err error) int {
	took := time.Since(at).Round(10 * time.Microsecond)
	if err != nil {
		fmt.Printf("%d %s failed %v\n", at.UnixMilli(), took, err)
		return 1
	}
	fmt.Printf("%d %s ok %s\n", at.UnixMilli(), took, got)
	return 0
}

func dial(ctx context.Context, network, address, line string) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // The answer is what counts.
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := fmt.Fprintln(conn, line); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(answer), err
}

// transfer fetches or uploads and says how many bytes went which way, how fast.
func transfer(ctx context.Context, method, url string, body io.Reader, size int64) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return "", err
	}
	if body != nil {
		request.ContentLength = size
	}
	started := time.Now()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close() //nolint:errcheck // It was read to its end.
	received, err := io.Copy(io.Discard, response.Body)
	if err != nil {
		return "", err
	}
	rate := float64(size+received) * 8 / 1e6 / time.Since(started).Seconds()
	return fmt.Sprintf("%s sent %d received %d %.0f Mbit/s", response.Status, size, received, rate), nil
}

func echo(ctx context.Context, name, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	packets, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := packets.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(writerTo{packets, from}, "%s %s\n", name, strings.TrimSpace(string(buf[:n])))
		}
	}()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close() //nolint:errcheck // The client sees it.
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					_, _ = fmt.Fprintf(conn, "%s %s\n", name, lines.Text())
				}
			}()
		}
	}()
	<-ctx.Done()
	return errors.Join(listener.Close(), packets.Close())
}

type writerTo struct {
	conn net.PacketConn
	to   net.Addr
}

func (w writerTo) Write(p []byte) (int, error) { return w.conn.WriteTo(p, w.to) }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
