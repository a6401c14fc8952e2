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

// Package conntrack removes and counts the flows that the proxy forwards, in the
// kernel's table of connections.
package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
)

// forwarded are the status bits of a flow of ours: both ends are translated.
const forwarded = conntrack.StatusSrcNAT | conntrack.StatusDstNAT

// States of TCP, by the kernel's numbers, in which a connection is over.
const (
	tcpTimeWait = 7
	tcpClose    = 8
)

// Table is the kernel's table of connections in one network namespace. It is not
// safe for concurrent use.
type Table struct {
	netns int
	conn  *conntrack.Conn
}

// Option of Open.
type Option func(*Table)

// InNetNS makes Open work in the network namespace of that file descriptor,
// which has to stay open until Open returns.
func InNetNS(fd int) Option { return func(t *Table) { t.netns = fd } }

// Open connects to the kernel. It needs CAP_NET_ADMIN in the namespace.
func Open(options ...Option) (*Table, error) {
	t := &Table{}
	for _, option := range options {
		option(t)
	}
	conn, err := conntrack.Dial(&netlink.Config{NetNS: t.netns})
	if err != nil {
		return nil, fmt.Errorf("connecting to conntrack: %w", err)
	}
	t.conn = conn
	return t, nil
}

// Close ends the connection to the kernel.
func (t *Table) Close() error { return t.conn.Close() }

// Delete removes the forwarded flows that stale is true for and returns how many
// they were. The next packet of each is treated as the first of a new one.
func (t *Table) Delete(stale func(rules.Flow) bool) (int, error) {
	flows, err := t.forwarded()
	if err != nil {
		return 0, err
	}
	deleted := 0
	var errs []error
	for _, f := range flows {
		if !stale(flowOf(f)) {
			continue
		}
		// The ID keeps a new flow of the same addresses and ports out of it.
		err := t.conn.Delete(conntrack.Flow{ID: f.ID, Zone: f.Zone, TupleOrig: f.TupleOrig, TupleReply: f.TupleReply})
		switch {
		case err == nil:
			deleted++
		case errors.Is(err, unix.ENOENT):
			// It ended by itself.
		default:
			errs = append(errs, fmt.Errorf("deleting flow %s: %w", f.TupleOrig, err))
		}
	}
	return deleted, errors.Join(errs...)
}

// Active counts the forwarded TCP connections that are not over. Flows of other
// protocols have no end that could be waited for.
func (t *Table) Active() (int, error) {
	flows, err := t.forwarded()
	if err != nil {
		return 0, err
	}
	active := 0
	for _, f := range flows {
		if info := f.ProtoInfo.TCP; info != nil && info.State != tcpTimeWait && info.State != tcpClose {
			active++
		}
	}
	return active, nil
}

func (t *Table) forwarded() ([]conntrack.Flow, error) {
	flows, err := t.conn.DumpFilter(conntrack.NewFilter().Status(forwarded), nil)
	if err != nil {
		return nil, fmt.Errorf("listing flows: %w", err)
	}
	// A kernel before 5.15 lists all flows.
	ours := flows[:0]
	for _, f := range flows {
		if f.Status&forwarded == forwarded {
			ours = append(ours, f)
		}
	}
	return ours, nil
}

func flowOf(f conntrack.Flow) rules.Flow {
	flow := rules.Flow{
		Protocol: f.TupleOrig.Proto.Protocol,
		To:       netip.AddrPortFrom(f.TupleReply.IP.SourceAddress, f.TupleReply.Proto.SourcePort),
		From:     f.TupleReply.IP.DestinationAddress,
		Port:     f.TupleOrig.Proto.DestinationPort,
	}
	return flow
}
