# Runs on a host: simulated clients (/usr/lib/mps-lab/simulated_client.py) as units, which no end of a session ends.
# In its arguments: "begin INSTANCE=SECONDS|forever …", once they came in, or "end".
set -u
how=$1
shift
if [ "$how" = end ]; then
    systemctl stop 'trial-client-*' 2>/dev/null
    systemctl reset-failed 'trial-client-*' 2>/dev/null
    rm -f /dev/shm/trial-client-*
    exit 0
fi
for one in "$@"; do
    name=trial-client-${one%%=*}
    systemd-run --quiet --unit="$name" -p RemainAfterExit=yes -p StandardOutput="file:/dev/shm/$name" \
        -E CUDA_MPS_PIPE_DIRECTORY="/run/nvidia-mps/${one%%=*}" \
        /usr/lib/mps-lab/simulated_client.py --hold "${one#*=}" || exit 1
done
for one in "$@"; do
    for _ in $(seq 100); do
        grep -q '"outcome": "client"' "/dev/shm/trial-client-${one%%=*}" && continue 2
        sleep 0.1
    done
    echo "the client of ${one%%=*} did not come in" >&2
    exit 1
done
