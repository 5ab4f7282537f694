"""Many Slurm jobs with shares from one shard to all of a GPU; it runs on the cluster's controller.

So many are in the queue or at work at once; the users take turns. A job begins as many clients as it has places, has
each come in as often as it takes, and ends well only when all were in at once. Prints a line of JSON for each job that
is over, and one at the end.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

CLIENT = "/usr/lib/mps-lab/simulated_client.py"
SHARDS = 8
TRIES = 100
OVER = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")

# Who came in says so by a file, and goes once all have said so at the same moment: else it comes anew.
JOB = """#!/bin/sh
env | grep -e ^SLURM_JOB_GPUS= -e ^CUDA -e ^SLURM_SHARDS -e ^SLURM_RESTART
place=/tmp/storm-$SLURM_JOB_ID; rm -rf $place; mkdir -p $place
one() {{
  for try in $(seq {tries}); do
    {client} --hold 100000 >$place/$1.out 2>&1 & pid=$!
    while kill -0 $pid 2>/dev/null; do
      [ -e $place/$1.in ] || ! grep -q '"client"' $place/$1.out || touch $place/$1.in
      set -- $1 $place/*.in
      [ ! -e $place/$1.in ] || [ $# -le {clients} ] || touch $place/all
      if [ -e $place/all ]; then kill $pid 2>/dev/null; exit 0; fi
      sleep 0.3
    done
    cat $place/$1.out
    rm -f $place/$1.in
  done
  exit 1
}}
for number in $(seq {clients}); do one $number & workers="$workers $!"; done
code=0
for worker in $workers; do wait $worker || code=1; done
[ -e $place/all ] || code=1
echo "ends with $code"
rm -rf $place
exit $code
"""


def submit(dice: random.Random, uids: list[str], number: int) -> tuple[str, int]:
    """A job's id, and how many shards it asks for."""
    shards = dice.choice((1, 1, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8))
    uid = uids[number % len(uids)]
    words = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"]
    words += ["sbatch", "--parsable", "-o", "/tmp/storm-%j.log"]
    script = JOB.format(tries=TRIES, client=CLIENT, clients=shards)
    done = subprocess.run(
        [*words, f"--gres=shard:{shards}"], input=script, capture_output=True, text=True, check=True, cwd="/tmp"
    )
    return done.stdout.strip(), shards


def states() -> dict[str, str]:
    done = subprocess.run(
        ["squeue", "-h", "-a", "-t", "all", "-o", "%i %T"], capture_output=True, text=True, check=False
    )
    return dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)


def main() -> None:
    count, at_once, seed, uids = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(",")
    dice = random.Random(seed)
    waiting: dict[str, int] = {}
    begun, ended = 0, {}
    while begun < count or waiting:
        while begun < count and len(waiting) < at_once:
            job, shards = submit(dice, uids, begun)
            waiting[job] = shards
            begun += 1
        now = states()
        for job in [one for one in waiting if now.get(one) in OVER]:
            ended[job] = now[job]
            print(json.dumps({"job": job, "shards": waiting.pop(job), "state": now[job]}), flush=True)
        time.sleep(0.5)
    print(json.dumps({"over": len(ended)}), flush=True)


main()
