// Command golangci-lint is the upstream linter with two plugins compiled in:
// kube-api-linter for API types and logcheck for structured logging. The
// upstream way to add plugins clones a repository; this builds from modules.
package main

import (
	"os"
	"runtime/debug"

	"github.com/golangci/golangci-lint/v2/pkg/commands"

	_ "sigs.k8s.io/kube-api-linter/pkg/plugin/base"
	_ "sigs.k8s.io/kube-api-linter/pkg/registration"
	_ "sigs.k8s.io/logtools/logcheck/gclplugin"
)

func main() {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/golangci/golangci-lint/v2" {
				version = dep.Version
			}
		}
	}
	if err := commands.Execute(commands.BuildInfo{Version: version, GoVersion: "unknown", Commit: "unknown", Date: "unknown"}); err != nil {
		os.Exit(3)
	}
}
