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

package nft

import (
	"fmt"
	"slices"

	"github.com/google/nftables"

	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
)

// change is what one transaction does, per table.
type change []tableChange

// tableChange turns a table into another one, by as little as possible.
type tableChange struct {
	want rules.Table
	// whole replaces the table with everything in it.
	whole bool
	// chains replaces the rules of all chains; flows in progress do not notice,
	// since rules and map change at one moment.
	chains bool
	// remove and add are elements of the map. One that leads elsewhere is in both.
	remove, add []rules.Element
}

func (c change) empty() bool {
	return !slices.ContainsFunc(c, func(t tableChange) bool { return !t.empty() })
}

func (t tableChange) empty() bool {
	return !t.whole && !t.chains && len(t.remove) == 0 && len(t.add) == 0
}

// difference leads from one ruleset to another.
func difference(have, want rules.Ruleset) change {
	return change{tableDifference(have.IPv4, want.IPv4), tableDifference(have.IPv6, want.IPv6)}
}

func tableDifference(have, want rules.Table) tableChange {
	c := tableChange{want: want}
	if !slices.EqualFunc(have.Chains, want.Chains, rules.Chain.SameHook) {
		return replacement(want)
	}
	c.chains = !slices.EqualFunc(have.Chains, want.Chains, rules.Chain.Equal)
	c.remove, c.add = elementDifference(have.Elements, want.Elements)
	return c
}

// difference leads from what the kernel holds to want.
func (have content) difference(want rules.Table) (tableChange, error) {
	if !have.intact {
		return replacement(want), nil
	}
	c := tableChange{want: want}
	for _, chain := range want.Chains {
		same, err := sameRules(chain, want.Family, have.rules[chain.Name])
		if err != nil {
			return tableChange{}, err
		}
		c.chains = c.chains || !same
	}
	c.remove, c.add = elementDifference(have.elements, want.Elements)
	return c, nil
}

func replacement(want rules.Table) tableChange {
	return tableChange{want: want, whole: true, add: want.Elements}
}

// elementDifference compares two sorted lists.
func elementDifference(have, want []rules.Element) (remove, add []rules.Element) {
	i, j := 0, 0
	for i < len(have) && j < len(want) {
		switch order := have[i].Compare(want[j].Key); {
		case order < 0:
			remove = append(remove, have[i])
			i++
		case order > 0:
			add = append(add, want[j])
			j++
		default:
			if have[i].To != want[j].To {
				remove, add = append(remove, have[i]), append(add, want[j])
			}
			i, j = i+1, j+1
		}
	}
	return append(remove, have[i:]...), append(add, want[j:]...)
}

// queue adds the messages of c to the transaction.
func (c change) queue(conn *nftables.Conn) error {
	for _, t := range c {
		if t.empty() {
			continue
		}
		if err := t.queue(conn); err != nil {
			return fmt.Errorf("encoding table %s %s: %w", t.want.Family, rules.TableName, err)
		}
	}
	return nil
}

func (t tableChange) queue(conn *nftables.Conn) error {
	table := tableOf(t.want.Family)
	targets := mapOf(table)
	if t.whole {
		// Adding what exists does nothing, so that there always is one to delete.
		conn.AddTable(table)
		conn.DelTable(table)
		conn.AddTable(table)
		if err := conn.AddSet(targets, nil); err != nil {
			return err
		}
	}
	for _, chain := range t.want.Chains {
		c := chainOf(table, chain)
		switch {
		case t.whole:
			conn.AddChain(c)
		case t.chains:
			conn.FlushChain(c)
		default:
			continue
		}
		for _, r := range chain.Rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: expressions(r, t.want.Family)})
		}
	}
	if err := inBatches(t.remove, func(e []nftables.SetElement) error { return conn.SetDeleteElements(targets, e) }); err != nil {
		return err
	}
	return inBatches(t.add, func(e []nftables.SetElement) error { return conn.SetAddElements(targets, e) })
}

func inBatches(all []rules.Element, send func([]nftables.SetElement) error) error {
	for part := range slices.Chunk(all, batch) {
		elements := make([]nftables.SetElement, 0, len(part))
		for _, e := range part {
			elements = append(elements, elementOf(e))
		}
		if err := send(elements); err != nil {
			return err
		}
	}
	return nil
}
