#!/bin/bash
# Build the SELinux module that the role can load on hosts, roles/mps/files/mps_fleet.pp, or into the file that is named.
# Needs checkmodule and semodule_package (Debian: checkpolicy, semodule-utils; RHEL: checkpolicy, policycoreutils).
set -euo pipefail
files=$(cd "$(dirname "$0")/.." && pwd)/roles/mps/files
output=${1:-$files/mps_fleet.pp}
for tool in checkmodule semodule_package; do
  command -v "$tool" >/dev/null || { echo "build_selinux: found no $tool, expected it; run make setup" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# -c 19: the oldest version of a module's format that hosts with systemd 249 read (libsepol 2.7 and newer).
checkmodule -M -m -c 19 -o "$work/mps_fleet.mod" "$files/mps_fleet.te"
semodule_package -o "$output" -m "$work/mps_fleet.mod"
