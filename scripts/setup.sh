#!/bin/bash
# Install what the lab and the tests need: apt packages where they are missing, and a Python environment.
set -euo pipefail
venv=$1
python=${PYTHON:-/usr/bin/python3}
packages=(ca-certificates checkpolicy gcc git libc6-dev mmdebstrap openssh-client python3 python3-venv semodule-utils
  systemd-container xz-utils)

say() { printf '%s  %s\n' "$(date +%T)" "$*"; }

if ! command -v apt-get >/dev/null; then
  echo "setup: found no apt-get, expected Debian or Ubuntu; the lab and its tests run there only" >&2
  exit 1
fi
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" != 0 ]; then
    echo "setup: found user $(id -un), expected root; run: sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
  say "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
# The contract tests of `mpsctl loopback` want a torch with gloo; without it they fail and say so, and nothing else does.
if ! /usr/bin/python3 -c 'import torch.distributed' 2>/dev/null; then
  say "installing python3-torch"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-torch >/dev/null ||
    say "found no python3-torch to install, expected torch in /usr/bin/python3; tests/contract/test_loopback.py will fail"
fi
say "Python environment in $venv"
"$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
touch "$venv/.complete"
say "set up"
