#!/bin/bash
# mypy --strict over all Python of the project, one run for each folder that is imported by its own name.
set -euo pipefail
cd "$(dirname "$0")/.."
check() { MYPYPATH=$1 mypy --strict "${@:2}" || failed=1; }
failed=0
check scripts -p mpsctl
check scripts scripts/*.py
check lab -p mpslab
for program in lab/files/usr/lib/mps-lab/*.py; do check lab "$program"; done
check lab:scripts inventories/lab/hosts.py
check scripts:plugins/plugin_utils plugins/plugin_utils/mps_role plugins/action/*.py
check scripts plugins/modules/*.py
check scripts:tests/unit/mpsctl tests/unit/mpsctl
check scripts:plugins/plugin_utils:tests/unit/role tests/unit/role
check lab:scripts:tests/contract:tests/unit/mpsctl tests/contract
check .:lab:scripts tests/unit/lab
check scripts molecule/tests
check scripts molecule/faults/tests
check .:plugins/plugin_utils -p tests.lab
check scripts monitoring/dashboard.py
check scripts tests/unit/test_monitoring.py
check .:plugins/plugin_utils -p tests.attack
check .:lab:scripts:tests/contract:tests/unit/mpsctl tests/soak/*.py
check lab:scripts tests/gpu/*.py
check scripts tests/bench/*.py
exit $failed
