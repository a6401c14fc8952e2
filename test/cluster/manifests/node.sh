# The first process of a node, in namespaces of its own for processes, mounts
# and the network: when it is killed, the kernel ends every process of the node,
# Pods included, and takes their mounts away.
set -eu

# Mounts made here stay here.
mount --make-rslave /
mount --make-rshared /
mount -t proc proc /proc
# What containerd, CNI and the kubelet keep outside of their own directories.
for dir in{{range .HiddenDirs}} {{.}}{{end}}; do
  mount -t tmpfs tmpfs "$dir"
done
# The kubelet sets what belongs to the whole machine; let it find its values.
for tunable in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file="{{.Dir}}/tunables/${tunable%=*}"
  mkdir -p "${file%/*}"
  echo "${tunable#*=}" >"$file"
  mount --bind "$file" "/proc/sys/${tunable%=*}"
done

# keep starts a program, and again a second after it ended.
keep() {
  while :; do
    "$@" >>"{{.LogDir}}/{{.Name}}-$1.log" 2>&1 || true
    sleep 1
  done
}

keep containerd --config "{{.Dir}}/containerd.toml" &

until [ -e "{{.ReadyFile}}" ] && [ -S "{{.Socket}}" ]; do
  sleep 0.1
done
keep kubelet --config="{{.Dir}}/kubelet.yaml" --kubeconfig="{{.Dir}}/kubelet.kubeconfig" \
  --hostname-override="{{.Name}}" --node-ip="{{.Addr}}" \
  --root-dir="{{.Dir}}/kubelet" --cert-dir="{{.Dir}}/kubelet/pki" --v=2 &
keep kube-proxy --config="{{.Dir}}/kube-proxy.yaml" --v=2 &
wait
