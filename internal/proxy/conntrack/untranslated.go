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

package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
)

// DeleteUntranslated removes flows to one of the Pod's addresses that nobody
// translates, except those to a port that the Pod serves, and returns how many
// they were. They began while there were no rules, and would lead to the Pod
// itself for as long as the client sends: rules see the first packet of a flow
// only. TCP is left out, since the Pod resets what it does not serve.
func (t *Table) DeleteUntranslated(pod []netip.Addr, served func(protocol uint8, port uint16) bool) (int, error) {
	flows, err := t.conn.Dump(nil)
	if err != nil {
		return 0, fmt.Errorf("listing flows: %w", err)
	}
	deleted := 0
	var errs []error
	for _, f := range flows {
		to := f.TupleOrig
		if f.Status&conntrack.StatusNATMask != 0 || to.Proto.Protocol == rules.TCP ||
			!slices.Contains(pod, to.IP.DestinationAddress) || served(to.Proto.Protocol, to.Proto.DestinationPort) {
			continue
		}
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
