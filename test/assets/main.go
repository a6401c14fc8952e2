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

// Command assets builds kube-apiserver, etcd and kubectl where they are missing
// and prints their directory, the value for KUBEBUILDER_ASSETS.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/tailnet-egress/egress-operator/test/cluster/binaries"
)

func main() {
	dir, err := binaries.Assets(context.Background(), os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
