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

package cluster

import (
	"crypto/rand"
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// users are who may call the API server, each with a token.
type users struct {
	server string
	caPEM  []byte
	lines  []string
}

// add makes a user and writes a kubeconfig with its token.
func (u *users) add(kubeconfig, name string, groups ...string) error {
	token := rand.Text()
	u.lines = append(u.lines, fmt.Sprintf("%s,%s,%s,%q", token, name, name, strings.Join(groups, ",")))
	config := clientcmdapi.NewConfig()
	config.Clusters["testbed"] = &clientcmdapi.Cluster{Server: u.server, CertificateAuthorityData: u.caPEM}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["testbed"] = &clientcmdapi.Context{Cluster: "testbed", AuthInfo: name}
	config.CurrentContext = "testbed"
	return clientcmd.WriteToFile(*config, kubeconfig)
}

// write makes the file that the API server reads users from.
func (u *users) write(file string) error {
	return os.WriteFile(file, []byte(strings.Join(u.lines, "\n")+"\n"), 0o600)
}
