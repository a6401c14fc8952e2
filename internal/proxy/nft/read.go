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
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
)

// content is what one of our tables holds in the kernel.
type content struct {
	// intact is whether the table is there with our chains and map, and no others.
	intact bool
	// rules of each chain, by its name, as the kernel encodes their expressions.
	rules map[string][][]byte
	// elements are sorted by key.
	elements []rules.Element
}

// reader asks the kernel. google/nftables leaves out the expressions that it
// does not know, so what it reads cannot be compared.
type reader struct{ conn *netlink.Conn }

const nfgenmsgLen = 4

func (r reader) request(message uint16, flags netlink.HeaderFlags, f rules.Family, attrs ...netlink.Attribute) ([]netlink.Message, error) {
	data, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return nil, err
	}
	family := byte(unix.NFPROTO_UNSPEC)
	if f != "" {
		family = byte(natFamily(f))
	}
	return r.conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | message),
			Flags: netlink.Request | flags,
		},
		Data: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, data...),
	})
}

func stringAttr(kind uint16, value string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: append([]byte(value), 0)}
}

// generation is the number of changes to any table of this network namespace.
func (r reader) generation() (uint32, error) {
	messages, err := r.request(unix.NFT_MSG_GETGEN, 0, "")
	if err != nil {
		return 0, fmt.Errorf("reading the generation: %w", err)
	}
	var id uint32
	for _, m := range messages {
		if err := each(m.Data[nfgenmsgLen:], func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.NFTA_GEN_ID {
				id = ad.Uint32()
			}
		}); err != nil {
			return 0, fmt.Errorf("reading the generation: %w", err)
		}
	}
	return id, nil
}

// table reads our table of the family of want. Chains are compared with those of
// want, since nothing else has to be known of them.
func (r reader) table(want rules.Table) (content, error) {
	f := want.Family
	own, err := r.tableIsOurs(f, len(want.Chains)+1)
	if err != nil || !own {
		return content{}, err
	}
	if same, err := r.chainsAre(f, want.Chains); err != nil || !same {
		return content{}, err
	}
	if same, err := r.mapIsOurs(f); err != nil || !same {
		return content{}, err
	}
	c := content{intact: true, rules: map[string][][]byte{}}
	if c.rules, err = r.rules(f); err != nil {
		return content{}, err
	}
	elements, ok, err := r.elements(f)
	if err != nil || !ok {
		return content{}, err
	}
	c.elements = elements
	return c, nil
}

func (r reader) tableIsOurs(f rules.Family, objects int) (bool, error) {
	messages, err := r.request(unix.NFT_MSG_GETTABLE, 0, f, stringAttr(unix.NFTA_TABLE_NAME, rules.TableName))
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading table %s %s: %w", f, rules.TableName, err)
	}
	var flags, use uint32
	for _, m := range messages {
		if err := each(m.Data[nfgenmsgLen:], func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_TABLE_FLAGS:
				flags = ad.Uint32()
			case unix.NFTA_TABLE_USE:
				use = ad.Uint32()
			}
		}); err != nil {
			return false, fmt.Errorf("reading table %s %s: %w", f, rules.TableName, err)
		}
	}
	return flags == 0 && use == uint32(objects), nil
}

func (r reader) chainsAre(f rules.Family, want []rules.Chain) (bool, error) {
	messages, err := r.request(unix.NFT_MSG_GETCHAIN, netlink.Dump, f)
	if err != nil {
		return false, fmt.Errorf("reading the chains of %s: %w", f, err)
	}
	have := map[string]hooked{}
	for _, m := range messages {
		table, name, c, err := parseChain(m.Data[nfgenmsgLen:])
		if err != nil {
			return false, fmt.Errorf("reading the chains of %s: %w", f, err)
		}
		if table == rules.TableName {
			have[name] = c
		}
	}
	for _, c := range want {
		h, found := have[c.Name]
		if !found || !h.hasHook || h.kind != string(c.Type) || h.hook != uint32(*hooks[c.Hook]) ||
			h.prio != uint32(c.Priority) || h.policy != uint32(nftables.ChainPolicyAccept) {
			return false, nil
		}
	}
	return len(have) == len(want), nil
}

// hooked is what the kernel says of a chain.
type hooked struct {
	kind               string
	hasHook            bool
	hook, prio, policy uint32
}

func parseChain(data []byte) (table, name string, c hooked, err error) {
	err = each(data, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			table = ad.String()
		case unix.NFTA_CHAIN_NAME:
			name = ad.String()
		case unix.NFTA_CHAIN_TYPE:
			c.kind = ad.String()
		case unix.NFTA_CHAIN_POLICY:
			c.policy = ad.Uint32()
		case unix.NFTA_CHAIN_HOOK:
			c.hasHook = true
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					switch ad.Type() {
					case unix.NFTA_HOOK_HOOKNUM:
						c.hook = ad.Uint32()
					case unix.NFTA_HOOK_PRIORITY:
						c.prio = ad.Uint32()
					}
				}
				return nil
			})
		}
	})
	return table, name, c, err
}

func (r reader) mapIsOurs(f rules.Family) (bool, error) {
	messages, err := r.request(unix.NFT_MSG_GETSET, netlink.Dump, f, stringAttr(unix.NFTA_SET_TABLE, rules.TableName))
	if err != nil {
		return false, fmt.Errorf("reading the maps of %s: %w", f, err)
	}
	want := mapOf(tableOf(f))
	same := len(messages) == 1
	for _, m := range messages {
		numbers := map[uint16]uint32{}
		err := each(m.Data[nfgenmsgLen:], func(ad *netlink.AttributeDecoder) {
			switch kind := ad.Type(); kind {
			case unix.NFTA_SET_NAME:
				same = same && ad.String() == want.Name
			case unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN,
				unix.NFTA_SET_DATA_TYPE, unix.NFTA_SET_DATA_LEN, unix.NFTA_SET_TIMEOUT:
				numbers[kind] = ad.Uint32()
			}
		})
		if err != nil {
			return false, fmt.Errorf("reading the maps of %s: %w", f, err)
		}
		same = same && numbers[unix.NFTA_SET_FLAGS]&unix.NFT_SET_MAP != 0 &&
			numbers[unix.NFTA_SET_KEY_TYPE] == want.KeyType.GetNFTMagic() &&
			numbers[unix.NFTA_SET_KEY_LEN] == want.KeyType.Bytes &&
			numbers[unix.NFTA_SET_DATA_TYPE] == want.DataType.GetNFTMagic() &&
			numbers[unix.NFTA_SET_DATA_LEN] == want.DataType.Bytes
	}
	return same, nil
}

func (r reader) rules(f rules.Family) (map[string][][]byte, error) {
	messages, err := r.request(unix.NFT_MSG_GETRULE, netlink.Dump, f, stringAttr(unix.NFTA_RULE_TABLE, rules.TableName))
	if err != nil {
		return nil, fmt.Errorf("reading the rules of %s: %w", f, err)
	}
	all := map[string][][]byte{}
	for _, m := range messages {
		var chain string
		var exprs []byte
		err := each(m.Data[nfgenmsgLen:], func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_RULE_CHAIN:
				chain = ad.String()
			case unix.NFTA_RULE_EXPRESSIONS:
				exprs = ad.Bytes()
			}
		})
		if err != nil {
			return nil, fmt.Errorf("reading the rules of %s: %w", f, err)
		}
		all[chain] = append(all[chain], exprs)
	}
	return all, nil
}

// elements are those of the map; false where one is none of ours.
func (r reader) elements(f rules.Family) ([]rules.Element, bool, error) {
	messages, err := r.request(unix.NFT_MSG_GETSETELEM, netlink.Dump, f,
		stringAttr(unix.NFTA_SET_ELEM_LIST_TABLE, rules.TableName), stringAttr(unix.NFTA_SET_ELEM_LIST_SET, rules.MapName))
	if err != nil {
		return nil, false, fmt.Errorf("reading the elements of %s: %w", f, err)
	}
	var all []rules.Element
	ok := true
	for _, m := range messages {
		err := each(m.Data[nfgenmsgLen:], func(ad *netlink.AttributeDecoder) {
			if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				return
			}
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					e, ours := parseElement(list.Bytes())
					ok = ok && ours
					all = append(all, e)
				}
				return nil
			})
		})
		if err != nil {
			return nil, false, fmt.Errorf("reading the elements of %s: %w", f, err)
		}
	}
	slices.SortFunc(all, func(a, b rules.Element) int { return a.Compare(b.Key) })
	return all, ok, nil
}

func parseElement(data []byte) (rules.Element, bool) {
	var key, value []byte
	for a := range attributes(data) {
		switch a.kind {
		case unix.NFTA_SET_ELEM_KEY:
			key = dataValue(a.content)
		case unix.NFTA_SET_ELEM_DATA:
			value = dataValue(a.content)
		}
	}
	return elementFrom(key, value)
}

func dataValue(data []byte) []byte {
	for a := range attributes(data) {
		if a.kind == unix.NFTA_DATA_VALUE {
			return a.content
		}
	}
	return nil
}

func each(data []byte, f func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}
