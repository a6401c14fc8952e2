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

package plan

import (
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/tailnet-egress/egress-operator/api/v1alpha1"
	"github.com/tailnet-egress/egress-operator/internal/names"
	"github.com/tailnet-egress/egress-operator/internal/proxyconfig"
)

const (
	tailscaledContainer = "tailscaled"
	egressContainer     = "egress-proxy"

	configDir = "/etc/egress-proxy"
	socketDir = "/var/run/tailscale"
	socket    = socketDir + "/tailscaled.sock"
	stateDir  = "/var/lib/tailscale"
	tunDevice = "/dev/net/tun"

	configVolume = "config"
	socketVolume = "socket"
	stateVolume  = "state"
	tunVolume    = "tun"

	// loginServerAnnotation of a Pod says which control server it was started for.
	loginServerAnnotation = "tailscale.com/login-server"

	// accountAnnotation of a Pod is the UID of the ServiceAccount that it was
	// replaced for.
	accountAnnotation = "tailscale.com/service-account"

	// terminationMargin is what a Pod gets beyond its drain cap before it is
	// killed.
	terminationMargin = 10 * time.Second
)

// statefulSet runs the proxy. Its template depends on nothing that a target's
// spec or a config can change, so that no edit restarts the Pod.
func (p *pass) statefulSet() *appsv1ac.StatefulSetApplyConfiguration {
	selector := names.Selector(names.ParentEgressTarget, p.Target.Namespace, p.Target.Name)
	template := corev1ac.PodTemplateSpec().WithLabels(p.labels).WithSpec(p.podSpec())
	if p.Settings.LoginServer != "" {
		// tailscaled reads it when it starts: a change has to start it anew.
		template.WithAnnotations(map[string]string{loginServerAnnotation: p.Settings.LoginServer})
	}
	if account := p.replacedAccount(); account != "" {
		template.WithAnnotations(map[string]string{accountAnnotation: account})
	}
	return appsv1ac.StatefulSet(p.child, p.Settings.OperatorNamespace).WithLabels(p.labels).WithSpec(appsv1ac.StatefulSetSpec().
		WithReplicas(1).
		WithServiceName(p.child).
		WithPodManagementPolicy(appsv1.ParallelPodManagement).
		WithUpdateStrategy(appsv1ac.StatefulSetUpdateStrategy().WithType(appsv1.RollingUpdateStatefulSetStrategyType)).
		WithSelector(metav1ac.LabelSelector().WithMatchLabels(selector)).
		WithTemplate(template))
}

// replacedAccount is the UID of a ServiceAccount that was made again while its Pod
// ran, "" where none was. The Pod's token died with the old one, and the kubelet
// renews it only after most of an hour: until then the proxy could report nothing.
func (p *pass) replacedAccount() string {
	ns := p.Settings.OperatorNamespace
	account, ok := find[*corev1.ServiceAccount](p.Children, ns, p.child)
	if pod := p.livePod(); ok && pod != nil && pod.CreationTimestamp.Before(&account.CreationTimestamp) {
		return string(account.UID)
	}
	if set, ok := find[*appsv1.StatefulSet](p.Children, ns, p.child); ok {
		return set.Spec.Template.Annotations[accountAnnotation]
	}
	return ""
}

func (p *pass) podSpec() *corev1ac.PodSpecApplyConfiguration {
	grace := (p.Settings.DrainCap + terminationMargin) / time.Second
	return corev1ac.PodSpec().
		WithServiceAccountName(p.child).
		WithAutomountServiceAccountToken(true).
		// Thousands of Services in one namespace overflow a Pod's environment.
		WithEnableServiceLinks(false).
		WithTerminationGracePeriodSeconds(int64(grace)).
		WithSecurityContext(corev1ac.PodSecurityContext().
			WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
		WithTopologySpreadConstraints(corev1ac.TopologySpreadConstraint().WithMaxSkew(1).
			WithTopologyKey(corev1.LabelHostname).WithWhenUnsatisfiable(corev1.ScheduleAnyway).
			WithLabelSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{
				"app.kubernetes.io/name": p.labels["app.kubernetes.io/name"]}))).
		WithInitContainers(p.tailscaledContainer()).
		WithContainers(p.egressContainer()).
		WithVolumes(
			corev1ac.Volume().WithName(configVolume).WithSecret(corev1ac.SecretVolumeSource().WithSecretName(p.pod).WithItems(
				corev1ac.KeyToPath().WithKey(proxyconfig.ConfigKey).WithPath(proxyconfig.ConfigKey),
				corev1ac.KeyToPath().WithKey(proxyconfig.TailscaledKey).WithPath(proxyconfig.TailscaledKey))),
			corev1ac.Volume().WithName(socketVolume).WithEmptyDir(corev1ac.EmptyDirVolumeSource()),
			corev1ac.Volume().WithName(stateVolume).WithEmptyDir(corev1ac.EmptyDirVolumeSource()),
			corev1ac.Volume().WithName(tunVolume).WithHostPath(corev1ac.HostPathVolumeSource().
				WithPath(tunDevice).WithType(corev1.HostPathCharDev)),
		)
}

// tailscaledContainer is a native sidecar, so that the tunnel is up before the
// proxy starts and until it has drained.
func (p *pass) tailscaledContainer() *corev1ac.ContainerApplyConfiguration {
	return corev1ac.Container().WithName(tailscaledContainer).WithImage(p.Settings.ProxyImage).
		WithRestartPolicy(corev1.ContainerRestartPolicyAlways).
		WithCommand("/usr/local/bin/tailscaled").
		WithArgs(
			"--config="+configDir+"/"+proxyconfig.TailscaledKey,
			"--state=kube:"+p.pod,
			"--statedir="+stateDir,
			"--socket="+socket,
			"--tun=tailscale0",
			"--port="+strconv.Itoa(v1alpha1.ProxyTailscaledPort),
		).
		// Cluster DNS being down must not stop a proxy from starting.
		WithEnv(env("TS_KUBERNETES_READ_API_SERVER_ADDRESS_FROM_ENV", "true"), env("TS_NO_LOGS_NO_SUPPORT", "true")).
		WithEnv(podEnv()...).
		WithSecurityContext(securityContext("NET_ADMIN", "NET_RAW")).
		WithResources(requests("20m", "64Mi")).
		WithVolumeMounts(
			corev1ac.VolumeMount().WithName(configVolume).WithMountPath(configDir).WithReadOnly(true),
			corev1ac.VolumeMount().WithName(socketVolume).WithMountPath(socketDir),
			corev1ac.VolumeMount().WithName(stateVolume).WithMountPath(stateDir),
			corev1ac.VolumeMount().WithName(tunVolume).WithMountPath(tunDevice),
		)
}

func (p *pass) egressContainer() *corev1ac.ContainerApplyConfiguration {
	return corev1ac.Container().WithName(egressContainer).WithImage(p.Settings.ProxyImage).
		WithCommand("/usr/local/bin/egress-proxy").
		WithArgs(
			"--config="+configDir+"/"+proxyconfig.ConfigKey,
			"--config-object=secret/"+p.pod,
			"--ack="+p.ackName,
			"--secret="+p.pod,
			"--socket="+socket,
			"--health-address=:"+strconv.Itoa(v1alpha1.ProxyHealthPort),
			"--tailscaled-port="+strconv.Itoa(v1alpha1.ProxyTailscaledPort),
			"--drain-cap="+p.Settings.DrainCap.String(),
		).
		WithEnv(podEnv()...).
		WithPorts(corev1ac.ContainerPort().WithName("health").WithContainerPort(v1alpha1.ProxyHealthPort).WithProtocol(corev1.ProtocolTCP)).
		WithStartupProbe(probe("/healthz", 1, 60)).
		WithReadinessProbe(probe("/readyz", 1, 2)).
		WithLivenessProbe(probe("/healthz", 10, 3)).
		WithSecurityContext(securityContext("NET_ADMIN")).
		WithResources(requests("10m", "32Mi")).
		WithVolumeMounts(
			corev1ac.VolumeMount().WithName(configVolume).WithMountPath(configDir).WithReadOnly(true),
			corev1ac.VolumeMount().WithName(socketVolume).WithMountPath(socketDir),
		)
}

// probe asks every period seconds and gives up after so many failures.
func probe(path string, period, failures int32) *corev1ac.ProbeApplyConfiguration {
	return corev1ac.Probe().WithPeriodSeconds(period).WithFailureThreshold(failures).WithTimeoutSeconds(max(1, period/2)).
		WithHTTPGet(corev1ac.HTTPGetAction().WithPath(path).WithPort(intstr.FromInt32(v1alpha1.ProxyHealthPort)))
}

// securityContext is root without any capability but those.
func securityContext(add ...corev1.Capability) *corev1ac.SecurityContextApplyConfiguration {
	return corev1ac.SecurityContext().WithPrivileged(false).WithAllowPrivilegeEscalation(false).
		WithReadOnlyRootFilesystem(true).WithRunAsUser(0).
		WithCapabilities(corev1ac.Capabilities().WithDrop("ALL").WithAdd(add...))
}

func requests(cpu, memory string) *corev1ac.ResourceRequirementsApplyConfiguration {
	return corev1ac.ResourceRequirements().WithRequests(corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)})
}

func env(name, value string) *corev1ac.EnvVarApplyConfiguration {
	return corev1ac.EnvVar().WithName(name).WithValue(value)
}

func podEnv() []*corev1ac.EnvVarApplyConfiguration {
	var out []*corev1ac.EnvVarApplyConfiguration
	for _, e := range [][2]string{
		{"POD_NAME", "metadata.name"}, {"POD_NAMESPACE", "metadata.namespace"},
		{"POD_UID", "metadata.uid"}, {"POD_IPS", "status.podIPs"},
	} {
		out = append(out, corev1ac.EnvVar().WithName(e[0]).WithValueFrom(corev1ac.EnvVarSource().
			WithFieldRef(corev1ac.ObjectFieldSelector().WithAPIVersion("v1").WithFieldPath(e[1]))))
	}
	return out
}
