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

// Package nft puts a rules.Ruleset into the kernel, and finds out whether it is
// still there.
package nft

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tailnet-egress/egress-operator/internal/proxy/rules"
)

const (
	// batch is how many elements go into one message, whose attribute can hold
	// 64 KiB.
	batch = 1000
	// sendBuffer holds the largest transaction: 2 x 131,072 elements.
	sendBuffer = 64 << 20
	// receiveBuffer holds the acknowledgements of it, and a long list.
	receiveBuffer = 8 << 20
	// patience is how long the kernel may take to answer.
	patience = 30 * time.Second
	// attempts to reach a wanted state while somebody else changes it.
	attempts = 3
)

// Programmer owns the tables "ip egress" and "ip6 egress" of one network
// namespace. It is not safe for concurrent use. What it programmed stays when it
// is closed, and when the process dies.
type Programmer struct {
	netns  int
	writer *nftables.Conn
	socket *netlink.Conn // of writer
	reader reader

	// wanted is what Apply was last given; nil before that.
	wanted *rules.Ruleset
	// known is what the kernel held when last asked or told; nil where that is not
	// known.
	known *rules.Ruleset
	// generation of the kernel's tables at which known was true for certain; 0
	// where that is not known.
	generation uint32
}

// Option of Open.
type Option func(*Programmer)

// InNetNS makes Open work in the network namespace of that file descriptor,
// which has to stay open as long as the Programmer.
func InNetNS(fd int) Option { return func(p *Programmer) { p.netns = fd } }

// Open connects to the kernel. It needs CAP_NET_ADMIN in the namespace.
func Open(options ...Option) (*Programmer, error) {
	p := &Programmer{}
	for _, option := range options {
		option(p)
	}
	if err := p.connect(); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Programmer) connect() error {
	writer, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(p.netns), nftables.WithSockOptions(
		func(c *netlink.Conn) error {
			p.socket = c
			return prepare(c)
		}))
	if err != nil {
		return fmt.Errorf("connecting to nftables: %w", err)
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: p.netns})
	if err == nil {
		err = prepare(conn)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("connecting to nftables: %w", err), writer.CloseLasting())
	}
	p.writer, p.reader = writer, reader{conn: conn}
	return nil
}

func prepare(c *netlink.Conn) error {
	return errors.Join(
		c.SetWriteBuffer(sendBuffer),
		c.SetReadBuffer(receiveBuffer),
		// Without this an error returns the message that it is about, up to 64 KiB.
		c.SetOption(netlink.CapAcknowledge, true),
	)
}

// Close leaves the rules in the kernel.
func (p *Programmer) Close() error {
	return errors.Join(p.writer.CloseLasting(), p.reader.conn.Close())
}

// reconnect throws away answers to what failed: they would be taken for answers
// to what comes next.
func (p *Programmer) reconnect() error {
	_ = p.Close()
	return p.connect()
}

// Apply makes the kernel hold want, in one transaction or not at all, and
// reports whether it had to change anything. It looks at the kernel the first
// time and after a failure; otherwise it trusts that nobody else touches our
// tables, which Verify checks. After an error the last good rules are in force,
// and Verify goes on trying.
func (p *Programmer) Apply(want rules.Ruleset) (changed bool, err error) {
	p.wanted = &want
	if p.known == nil {
		return p.reconcile()
	}
	c := difference(*p.known, want)
	if c.empty() {
		return false, nil
	}
	if err := p.commit(c); err != nil {
		// The kernel may hold something else than we remember, or may have committed
		// before the answer was lost: looking is better than guessing.
		return p.lookAgain(err)
	}
	return true, nil
}

// Verify compares the kernel with what was last applied and repairs what
// differs. It costs one small question as long as nobody changed any table of
// the namespace.
func (p *Programmer) Verify() (repaired bool, err error) {
	if p.wanted == nil {
		return false, nil
	}
	if p.known != nil && p.generation != 0 {
		generation, err := p.reader.generation()
		if err != nil {
			return p.lookAgain(err)
		}
		if generation == p.generation {
			return false, nil
		}
	}
	return p.reconcile()
}

// reconcile compares the kernel itself with what is wanted.
func (p *Programmer) reconcile() (changed bool, err error) {
	for range attempts {
		var c change
		if c, err = p.compare(); err == nil {
			if c.empty() {
				p.known = p.wanted
				return changed, nil
			}
			if err = p.commit(c); err == nil {
				return true, nil
			}
			// It may have been committed all the same.
			changed = true
		}
		if again := p.reconnect(); again != nil {
			return changed, errors.Join(err, again)
		}
	}
	return changed, err
}

func (p *Programmer) lookAgain(cause error) (changed bool, err error) {
	if err := p.reconnect(); err != nil {
		return false, errors.Join(cause, err)
	}
	if changed, err = p.reconcile(); err != nil {
		return changed, errors.Join(cause, err)
	}
	return true, nil
}

// compare reads the kernel and returns what has to change.
func (p *Programmer) compare() (change, error) {
	p.known, p.generation = nil, 0
	before, err := p.reader.generation()
	if err != nil {
		return change{}, err
	}
	var c change
	for _, want := range []rules.Table{p.wanted.IPv4, p.wanted.IPv6} {
		have, err := p.reader.table(want)
		if err != nil {
			return change{}, err
		}
		t, err := have.difference(want)
		if err != nil {
			return change{}, err
		}
		c = append(c, t)
	}
	after, err := p.reader.generation()
	if err != nil {
		return change{}, err
	}
	if before != after {
		return change{}, errors.New("the tables changed while they were read")
	}
	p.generation = before
	return c, nil
}

// commit sends c as one transaction.
func (p *Programmer) commit(c change) error {
	before := p.generation
	p.known, p.generation = nil, 0
	if err := c.queue(p.writer); err != nil {
		return err
	}
	if err := p.socket.SetDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("setting a deadline: %w", err)
	}
	if err := p.writer.Flush(); err != nil {
		return fmt.Errorf("changing the tables: %w", err)
	}
	p.known = p.wanted
	if before == 0 {
		return nil
	}
	// If the tables changed once since they were known, then it was by this.
	after, err := p.reader.generation()
	if err == nil && after == before+1 {
		p.generation = after
	}
	return nil
}
