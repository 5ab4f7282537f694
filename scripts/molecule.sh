#!/bin/bash
# Run Molecule scenarios over the lab, each on hosts of its own beside any demo fleet, and clean up whatever happens.
set -euo pipefail
cd "$(dirname "$0")/.."
export MPS_LAB_PREFIX=${MPS_LAB_PREFIX:-mol}
for scenario in "$@"; do
  trap 'lab/lab down --prefix "$MPS_LAB_PREFIX"' EXIT
  printf '%s  scenario %s\n' "$(date +%T)" "$scenario"
  molecule test --scenario-name "$scenario"
done
