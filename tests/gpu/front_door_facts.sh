#!/bin/bash
# What a client and a command need of a pipe directory: which files, reached how.
# Decides how clients can be kept out until limits are in force. Changes nothing on the GPU.
set -u
here=$(cd "$(dirname "$0")" && pwd)
base=/run/mps-front-door; rm -rf $base; mkdir -p $base/0; chmod 0755 $base $base/0
public=$base/0; private=$base/0/.d-$RANDOM; mkdir -m 0711 $private
client() { CUDA_MPS_PIPE_DIRECTORY=$1 timeout 30 python3 "$here/cuda_client.py" "${@:2}"; }
ask() { local d=$1; shift; printf '%s\n' "$@" | CUDA_MPS_PIPE_DIRECTORY=$d timeout 10 nvidia-cuda-mps-control; echo "[rc=$?]"; }
echo "== machine"; cat /etc/os-release | head -2; nvidia-smi --query-gpu=name,uuid,driver_version,compute_mode,persistence_mode --format=csv
UUID=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -1)
CUDA_VISIBLE_DEVICES=$UUID CUDA_MPS_PIPE_DIRECTORY=$private nvidia-cuda-mps-control -f >$base/daemon.log 2>&1 & daemon=$!
sleep 1; ls -lan $private
ask $private "set_default_device_pinned_mem_limit 0 2G" "get_default_device_pinned_mem_limit 0" "get_default_active_thread_percentage"
echo "== no link in the public directory: expect a silent bypass"; client $public --label none
echo "== hard link of control only"; ln $private/control $public/control; ask $public get_default_device_pinned_mem_limit\ 0; client $public --label hard --allocate-mib 1400 --allocate-mib 3000
client $public --label hard-uid1000 --uid 1000
echo "== symlink of control only"; rm $public/control; ln -s $(basename $private)/control $public/control; ask $public get_default_device_pinned_mem_limit\ 0; client $public --label sym --allocate-mib 1400 --allocate-mib 3000
client $public --label sym-uid1000 --uid 1000
echo "== all names as symlinks"; for f in $private/*; do ln -sf $(basename $private)/$(basename $f) $public/; done; client $public --label all-sym; client $public --label all-sym-uid1000 --uid 1000
echo "== by visible devices uuid on the client"; CUDA_VISIBLE_DEVICES=$UUID client $public --label uuid-visible
echo "== wrong index"; CUDA_VISIBLE_DEVICES=1 client $public --label index1
echo "== quick succession of uids: server list and environment"; ask $private get_server_list; for s in $(echo get_server_list | CUDA_MPS_PIPE_DIRECTORY=$private nvidia-cuda-mps-control); do tr '\0' '\n' </proc/$s/environ | grep -E 'CUDA|PATH'; done
echo "== front door closed under a running client"; client $public --label runner --hold-s 4 & sleep 1.5; rm -f $public/control $public/control_privileged $public/log $public/control_lock $public/*.pid; client $public --label closed; wait %2
echo "== start_server for uid 1000 behind a 0711 directory"; ask $private "start_server -uid 1000"; sleep 1; S=$(echo get_server_list | CUDA_MPS_PIPE_DIRECTORY=$private nvidia-cuda-mps-control); echo "servers: $S"; for s in $S; do ask $private "get_server_status $s"; ask $private "get_device_pinned_mem_limit $s 0"; ps -o pid,uid,cmd -p $s; done
echo "== is control_privileged used by root commands through the public directory? only control there"; ln -s $(basename $private)/control $public/control; ask $public "set_default_device_pinned_mem_limit 0 3G" "get_default_device_pinned_mem_limit 0" "get_default_active_thread_percentage"
echo "== by uuid key"; ask $private "set_default_device_pinned_mem_limit $UUID 1536M" "get_default_device_pinned_mem_limit $UUID" "get_default_device_pinned_mem_limit 0"
echo "== priority"; ask $private "set_default_client_priority 1" get_default_client_priority
echo "== terminate when asked"; ask $private "quit -t 5"; sleep 0.5; kill -0 $daemon 2>/dev/null && { echo still there; kill $daemon; }; wait $daemon; echo "daemon rc=$?"
echo "== -M"; CUDA_VISIBLE_DEVICES=$UUID CUDA_MPS_PIPE_DIRECTORY=$private nvidia-cuda-mps-control -f -M >$base/daemon-m.log 2>&1 & daemon=$!; sleep 1; ask $private "set_default_device_pinned_mem_limit 0 2G" "start_server -uid 0"; sleep 1; client $public --label m-root; client $public --label m-1000 --uid 1000; ask $private "quit -t 5"; wait $daemon; echo "rc=$?"
echo "== -multiuser-server"; CUDA_VISIBLE_DEVICES=$UUID CUDA_MPS_PIPE_DIRECTORY=$private timeout 3 nvidia-cuda-mps-control -f -multiuser-server | head -5
echo "== daemon log"; cat $base/daemon.log; echo "== -M log"; cat $base/daemon-m.log
rm -rf $base
