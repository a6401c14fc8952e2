#!/bin/sh
# Says in one line what a machine lacks to run the demo, before anything is built.
lacks() { echo "make $1: $2" >&2; exit 1; }
[ "$(uname -s)" = Linux ] || lacks "$1" "needs Linux: the cluster runs in network namespaces"
[ "$(id -u)" = 0 ] || lacks "$1" "needs root: run it as root on a machine that may run a test cluster"
for program in go:golang gcc:gcc pkg-config:pkg-config nft:nftables nsenter:util-linux ip:iproute2; do
  command -v "${program%%:*}" >/dev/null || lacks "$1" "${program%%:*} is not installed (Debian package ${program##*:})"
done
pkg-config --exists libseccomp || lacks "$1" "the headers of libseccomp are not installed (Debian package libseccomp-dev)"
[ -e /dev/net/tun ] || lacks "$1" "/dev/net/tun does not exist (modprobe tun)"
