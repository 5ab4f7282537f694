"""What is wrong with units, cron jobs and scripts that run MPS."""

from __future__ import annotations

from typing import Mapping

from mpsctl.causes.catalogue.cause import Cause

CAUSES: Mapping[str, Cause] = {
    "command-as-argument": Cause(
        "the control daemon reads its commands from standard input, not from arguments. Up to 550 such a call does"
        " nothing and ends with 0; 555 prints its usage and ends with 1",
        "`echo COMMAND | nvidia-cuda-mps-control` in a shell, and read the value back",
    ),
    "quit-as-argument": Cause(
        "`quit` or `-q` as an argument stops nothing (up to 550 with exit code 0). systemd then ends the daemon and its"
        " servers by signals, and their clients lose their work",
        "ExecStop=/bin/sh -c 'echo \"quit -t 20\" | nvidia-cuda-mps-control', with a longer TimeoutStopSec=",
    ),
    "pipeline-without-shell": Cause(
        "systemd runs no shell: pipes, redirections and substitutions in an Exec line are plain words for the first"
        " program",
        "wrap the line: /bin/sh -c '…'",
    ),
    "ordering-cycle": Cause(
        "the unit is ordered after a target that itself comes after the one that wants it. systemd breaks the cycle: it"
        " leaves the unit out of the boot, without a failure",
        "remove After=graphical.target; order after nvidia-persistenced.service",
    ),
    "depends-on-docker": Cause(
        "Requires=docker.service stops MPS with every restart of docker, and waits for what MPS does not need",
        "remove it; order after nvidia-persistenced.service",
    ),
    "active-without-daemon": Cause(
        "RemainAfterExit=yes keeps the unit active after its daemon has ended",
        "remove RemainAfterExit=, and add Restart=always",
    ),
    "no-restart": Cause(
        "the unit does not start a daemon again that has ended",
        "add Restart=always and RestartSec=, and set the limits in the unit at every start",
    ),
    "start-failure-hidden": Cause(
        "a failed start is swallowed (`|| true`, or a `-` before the command), so the unit is active with no daemon",
        "let it fail: systemd tries again and monitoring sees it",
    ),
    "defaults-without-read-back": Cause(
        "limits are set at the start and never read back. The daemon refuses nothing and says nothing, and a command"
        " that was not served looks the same",
        "read each value back with its getter; with memory limits the server's log has the bytes",
    ),
    "compute-mode-by-cron": Cause(
        "the compute mode is set by a cron job at boot, which nothing orders before the daemon and its first clients",
        "set it in the unit, before the daemon (ExecStartPre=nvidia-smi -i UUID -c EXCLUSIVE_PROCESS)",
    ),
    "compute-mode-of-all-gpus": Cause(
        "nvidia-smi -c without -i sets the mode of every GPU, or takes a GPU's number for a mode (2 is prohibited)",
        "name the GPU and the mode: nvidia-smi -i UUID -c EXCLUSIVE_PROCESS",
    ),
    "substring-test": Cause(
        "a GPU is looked for as a part of a list's text: 1 is found in 10, and an empty one in everything",
        "compare whole names, UUIDs best",
    ),
    "pipe-directory-removed": Cause(
        "the script removes a pipe directory. The lock that keeps a second daemon away lies in it, and nobody can reach"
        " a daemon that still lives",
        "send `quit` on standard input first and wait until the process is gone",
    ),
    "restart-on-every-run": Cause(
        "MPS is restarted without a need, which ends every client each time",
        "change limits by command on the running daemon; restart only when what changed cannot be changed live",
    ),
}
