// Command coredns is CoreDNS with only the plugins that the testbed's cluster
// uses; the full set takes five minutes to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

// The order in which plugins see a query, which CoreDNS keeps in one list.
func init() {
	dnsserver.Directives = []string{
		"reload", "errors", "health", "ready", "cache", "loop", "hosts", "kubernetes", "forward",
	}
}

func main() { coremain.Run() }
