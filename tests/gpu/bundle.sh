#!/bin/bash
# Pack everything that a test on a GPU machine needs into build/gpu-bundle.tar.xz: a small Debian host root
# with systemd and sshd, systemd-nspawn with the libraries it needs outside of it, and Ansible and Molecule as they
# stand on the package index. Nothing of it is NVIDIA's: the driver and its MPS daemon are the GPU machine's own.
# bundle.sh [OUTPUT [LEVEL]] writes elsewhere, or packs faster and larger (xz's levels, 0 to 9).
set -euo pipefail
output=$(realpath -m "${1:-$(dirname "$0")/../../build/gpu-bundle.tar.xz}")
level=${2:-6}
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work" "$output.new"' EXIT
root=$work/bundle/root
mkdir -p "$work/bundle/nspawn" "$(dirname "$output")"
say() { printf '%s  %s\n' "$(date +%T)" "$*"; }

say "building the host root"
mmdebstrap --quiet --variant=essential --components=main \
  --include=systemd,systemd-sysv,dbus,python3,systemd-container,openssh-server,iproute2,procps \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/lib/x86_64-linux-gnu/gconv/*' \
  bookworm "$root"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/usr/share/{i18n,zoneinfo,bash-completion} \
  "$root"/dev/* "$root"/etc/{machine-id,hostname,resolv.conf} "$root"/etc/ssh/ssh_host_*

say "taking systemd-nspawn and its libraries out"
cp "$root/usr/bin/systemd-nspawn" "$work/bundle/nspawn/"
# Every library that the root's own loader names, but the C library and what belongs to it.
chroot "$root" /usr/bin/ldd /usr/bin/systemd-nspawn 2>/dev/null | awk '$2 == "=>" {print $3}' |
  grep -Ev '/(libc|libm|libpthread|librt|libdl|ld-linux[^/]*)\.so' | while read -r library; do
  cp -L "$root$library" "$work/bundle/nspawn/"
done
# Loaded at run time, so ldd does not name them.
for name in libseccomp libacl libselinux libblkid libcap libcrypt libgcrypt libip4tc libkmod liblz4 libmount \
  libcrypto libpam libzstd liblzma libpcre2-8 libgpg-error libaudit libcap-ng libapparmor; do
  find "$root/usr/lib/x86_64-linux-gnu" "$root/lib/x86_64-linux-gnu" -maxdepth 1 -name "$name.so.[0-9]*" 2>/dev/null |
    while read -r library; do cp -L "$library" "$work/bundle/nspawn/"; done
done
cp -L "$root"/usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-*.so "$work/bundle/nspawn/"

say "adding Ansible and Molecule for the root's Python"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --target "$root/opt/ansible" \
  --python-version 3.11 --implementation cp --only-binary=:all: 'ansible-core==2.19.*' 'nvidia-ml-py>=13' \
  'molecule>=25.7,<27' 'pytest-testinfra>=10.1,<11'
rm -rf "$root/opt/ansible/ansible_test"
sed -i '1s|.*|#!/usr/bin/python3|' "$root"/opt/ansible/bin/*

say "packing"
tar -C "$work/bundle" --numeric-owner -cf - . | xz -T0 "-$level" >"$output.new"
mv "$output.new" "$output"
say "$output: $(stat -c %s "$output") bytes"
