#!/bin/bash
# A small fleet on this machine, MPS on it, and what to try next.
set -euo pipefail
cd "$(dirname "$0")/.."
hosts=$1 gpus=$2

lab/lab up --hosts "$hosts" --gpus "$gpus"
echo
ansible-playbook -i inventories/lab site.yml -l gpu-nodes
echo
echo "What runs now (real: systemd, ssh, NVIDIA's control daemon; simulated: the GPUs behind NVML):"
first=
for host in $(lab/lab list | awk 'NR > 1 {print $1}'); do
  first=${first:-$host}
  echo
  echo "== $host"
  lab/lab ssh "$host" mpsctl status
  for instance in $(lab/lab ssh "$host" 'ls /run/nvidia-mps'); do
    limit=$(lab/lab ssh "$host" mpsctl control "$instance" get_default_device_pinned_mem_limit 0)
    echo "  NVIDIA's daemon of instance $instance says: a client may take $limit"
  done
done
cat <<END

Try next:
  lab/lab ssh $first systemctl status mps-control@0
  lab/lab ssh $first 'kill -9 \$(systemctl show -p MainPID --value mps-control@0); sleep 1; mpsctl status'
  lab/lab ssh $first systemctl reboot          then: lab/lab ssh $first mpsctl status
  edit inventories/lab/group_vars/gpu-nodes.yml, then:
  .venv/bin/ansible-playbook -i inventories/lab site.yml -l gpu-nodes --check --diff
  make clean                                   ends the fleet
END
