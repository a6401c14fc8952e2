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
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
)

const (
	attrHeader = 4
	attrAlign  = 4
)

// attribute of netlink.
type attribute struct {
	kind    uint16
	nested  bool
	content []byte
}

// attributes are those in data. A malformed rest is left out.
func attributes(data []byte) iter.Seq[attribute] {
	return func(yield func(attribute) bool) {
		for len(data) >= attrHeader {
			length := int(binary.NativeEndian.Uint16(data))
			if length < attrHeader || length > len(data) {
				return
			}
			kind := binary.NativeEndian.Uint16(data[2:])
			if !yield(attribute{
				kind:    kind &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER),
				nested:  kind&unix.NLA_F_NESTED != 0,
				content: data[attrHeader:length],
			}) {
				return
			}
			data = data[min(len(data), (length+attrAlign-1)/attrAlign*attrAlign):]
		}
	}
}

// sameRules is whether the kernel's rules are those of c.
func sameRules(c rules.Chain, f rules.Family, kernel [][]byte) (bool, error) {
	if len(c.Rules) != len(kernel) {
		return false, nil
	}
	for i, r := range c.Rules {
		same, err := sameRule(r, f, kernel[i])
		if err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

func sameRule(r rules.Rule, f rules.Family, kernel []byte) (bool, error) {
	have := slices.Collect(attributes(kernel))
	want := expressions(r, f)
	if len(want) != len(have) {
		return false, nil
	}
	for i, e := range want {
		listed, err := asListed(e, f)
		if err != nil {
			return false, fmt.Errorf("encoding %T: %w", e, err)
		}
		if !sameAttributes(listed, have[i].content) {
			return false, nil
		}
	}
	return true, nil
}

// asListed is how the kernel lists e, up to zeros and flags of nesting.
func asListed(e expr.Any, f rules.Family) ([]byte, error) {
	family := byte(natFamily(f))
	nat, ok := e.(*expr.NAT)
	if !ok {
		return expr.Marshal(family, e)
	}
	// The kernel notes which ranges it was given, and google/nftables cannot.
	flags := uint32(unix.NF_NAT_RANGE_MAP_IPS)
	if nat.RegProtoMin != 0 {
		flags |= unix.NF_NAT_RANGE_PROTO_SPECIFIED
	}
	data, err := expr.MarshalExprData(family, nat)
	if err != nil {
		return nil, err
	}
	noted, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_NAT_FLAGS, Data: binaryutil.BigEndian.PutUint32(flags)},
	})
	if err != nil {
		return nil, err
	}
	return netlink.MarshalAttributes([]netlink.Attribute{
		stringAttr(unix.NFTA_EXPR_NAME, "nat"),
		{Type: unix.NLA_F_NESTED | unix.NFTA_EXPR_DATA, Data: append(data, noted...)},
	})
}

// sameAttributes is whether the kernel lists what was sent. Zeros count as
// absent: the kernel lists defaults that nobody sent, and leaves out some that
// were. What is nested is known from what was sent; the kernel does not flag it.
func sameAttributes(sent, kernel []byte) bool {
	listed := map[uint16][]byte{}
	for a := range attributes(kernel) {
		if !zero(a.content) {
			listed[a.kind] = a.content
		}
	}
	for a := range attributes(sent) {
		content := listed[a.kind]
		delete(listed, a.kind)
		switch {
		case a.nested:
			if !sameAttributes(a.content, content) {
				return false
			}
		case zero(a.content) && len(content) == 0:
		case !bytes.Equal(a.content, content):
			return false
		}
	}
	return len(listed) == 0
}

func zero(data []byte) bool {
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}
