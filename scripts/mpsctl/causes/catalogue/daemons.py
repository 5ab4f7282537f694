"""What is wrong with a control daemon or an instance's unit, or that there is none."""

from __future__ import annotations

from typing import Mapping

from mpsctl.causes.catalogue.cause import Cause

CAUSES: Mapping[str, Cause] = {
    "drained": Cause(
        "the instance is drained: no new client gets in until somebody undrains it. A reload, a restart and `site.yml`"
        " leave it closed",
        "`mpsctl undrain INSTANCE`, when the reason for the drain is gone",
    ),
    "no-daemon": Cause(
        "no control daemon listens on the pipe directory, so CUDA runs without MPS and says nothing. A socket file that"
        " is still there proves nothing: it outlives its daemon",
        "start the instance (`systemctl start mps-control@INSTANCE`); `mpsctl status` says what keeps it from running",
    ),
    "unit-not-active": Cause(
        "the unit of the instance is not active, so no client finds a daemon",
        "`systemctl start mps-control@INSTANCE`; where that fails, `journalctl -u mps-control@INSTANCE` says why",
    ),
    "unit-masked": Cause(
        "the unit of the instance is masked: systemd neither starts it nor lets anybody start it",
        "`systemctl unmask mps-control@INSTANCE`, then run site.yml",
    ),
    "front-door-gone": Cause(
        "nobody listens where clients look for the daemon: the socket's unit is stopped, masked or was never started,"
        " or its files were removed. CUDA then runs outside MPS and says nothing",
        "run site.yml; or stop mps-front-door@INSTANCE.service and restart mps-front-door@INSTANCE.socket",
    ),
    "unknown-greeting": Cause(
        "the control daemon greets its clients with words that the front door does not know, so every client is refused"
        " with error 805: a driver that is newer than this release of mps-fleet, most likely",
        "see `mpsctl verify` for what it said; upgrade mps-fleet, or go back to the driver of before",
    ),
    "front-door-closed": Cause(
        "the front door lets no client in: the limits are not yet in force, or the last start did not get that far",
        "`systemctl reload mps-control@INSTANCE`, then `mpsctl status`",
    ),
    "daemon-stopped": Cause(
        "the daemon's process is stopped by a signal (SIGSTOP) or a debugger. It accepts connections and answers"
        " nobody; clients hang in cuInit",
        "let it go on (`kill -CONT` and its pid), and find who stopped it; or restart the unit, which ends its clients",
    ),
    "daemon-hangs": Cause(
        "the daemon's process lives and does not answer, and nobody is seen to be connected to it. Either its GPU is"
        " gone, or it is jammed",
        "look at its GPU (`mpsctl gpus`, `dmesg`) first; then restart the unit, which ends its clients",
    ),
    "daemon-jammed": Cause(
        "the control daemon is jammed: a client ended at the moment at which the daemon had its credentials and had not"
        " answered. `get_server_list` still answers, all that asks about a server hangs, and every client waits",
        "`systemctl restart mps-control@INSTANCE`, which ends its clients; where none is connected, the health timer"
        " does it at once",
    ),
    "socket-gone": Cause(
        "the daemon's process lives and nothing listens on its socket: its files were removed or replaced under it",
        "drain its clients, then `systemctl restart mps-control@INSTANCE`; start no second daemon before",
    ),
    "session-held": Cause(
        "another process is connected to the daemon and holds its one session: a prompt left open, a slow pipeline, or"
        " a program that connected and says nothing. Commands are refused meanwhile, or return nothing with exit code"
        " 0, and clients may have to wait",
        "end that process, which `mpsctl verify` names with its pid, user and command; `mpsctl` tries again until then",
    ),
    "daemon-not-found": Cause(
        "the front-end found no daemon: CUDA_MPS_PIPE_DIRECTORY is not the daemon's own in that shell, or the daemon"
        " belongs to another user. Or its start failed without a word: a pipe directory above 87 bytes, or one that"
        " cannot be written",
        "give both the same CUDA_MPS_PIPE_DIRECTORY (`mpsctl env INSTANCE`), and look at the exit code of the start",
    ),
    "already-running": Cause(
        "another control daemon serves that pipe directory: its lock decides, not the pid file or the socket",
        "use the running one; `mpsctl doctor` names it. To replace it, send it `quit` on standard input first",
    ),
    "orphan-daemon": Cause(
        "a control daemon runs whose pipe directory or socket was removed under it. Nobody can reach it or quit it, and"
        " a second daemon can start beside it",
        "let its clients finish, then end that one process by its process id; never remove a pipe directory before its"
        " daemon has quit",
    ),
    "two-daemons-one-gpu": Cause(
        "two control daemons offer the same GPU: their servers compete for it, and in exclusive mode the second gets"
        " none",
        "leave each GPU to one daemon: send `quit` to the one that is not the instance's, and disable what starts it",
    ),
    "foreign-daemon": Cause(
        "a control daemon runs on this host that is no instance's: it has none of the instances' limits, and its"
        " clients are not counted there",
        "find what starts it (its unit, job or container) and leave MPS to one manager",
    ),
    "several-managers": Cause(
        "something else beside this host's instances manages MPS or compute modes (a device plugin, a Slurm prolog, a"
        " vendor's unit, a container), and each undoes what the other did",
        "let one of them manage MPS and switch the others off",
    ),
    "default-pipe-directory": Cause(
        "a daemon serves the default pipe directory /tmp/nvidia-mps. Every CUDA process without"
        " CUDA_MPS_PIPE_DIRECTORY becomes its client without asking, and so does every container that mounts it",
        "set CUDA_MPS_PIPE_DIRECTORY to a directory of its own, for example /run/nvidia-mps/0",
    ),
    "cleaned-pipe-directory": Cause(
        "files of a live daemon are gone from its pipe directory, its lock or its log among them, as after a cleaner of"
        " /tmp. The daemon still answers, and a second one could now take over its sockets",
        "do not start a second daemon; restart this one when its clients are done, on a directory under /run",
    ),
    "selinux-label": Cause(
        "SELinux enforces, and the pipe directory's label does not let containers connect to its sockets",
        "`semanage fcontext -a -t container_file_t 'DIRECTORY(/.*)?'` and `restorecon -R DIRECTORY`; /run is made"
        " anew at every boot",
    ),
    "pipe-directory-too-long": Cause(
        "a pipe directory above 87 bytes leaves no room for the daemon's longest socket: it ends with 1 and no message",
        "shorten it, for example to /run/nvidia-mps/0",
    ),
    "pipe-directory-unwritable": Cause(
        "the daemon can neither make nor write its pipe directory; it makes only the last part of the path",
        "make the parent directories in the unit (RuntimeDirectory=), owned by the daemon's user",
    ),
    "pipe-directory-under-tmp": Cause(
        "a pipe directory under /tmp is emptied by cleaners while the daemon lives, and by every boot. One that was"
        " made once at installation is then missing",
        "use RuntimeDirectory=nvidia-mps/%i and /run/nvidia-mps/%i",
    ),
    "pipe-directory-in-shm": Cause(
        "a pipe directory under /dev/shm is hidden in containers by their own /dev/shm, and gone at the next boot",
        "use a directory under /run, and mount it",
    ),
    "setter-refused": Cause(
        "only root and the user who started the daemon may change its settings; the daemon prints the refusal and the"
        " front-end ends with 0",
        "set it as root, in the instance's file, and let `systemctl reload` put it in force",
    ),
    "protocol-3": Cause(
        "the daemon speaks protocol 3 (driver 615 or newer). Its default pipe directory is /run/nvidia-mps for root,"
        " each server has a directory for its logs, and a front-end follows the daemon's protocol, not its own flag",
        "set CUDA_MPS_PIPE_DIRECTORY and the protocol explicitly; instances of ours speak protocol 2",
    ),
    "open-log": Cause(
        "the daemon's log is a FIFO that everybody may write, and what stands in it reaches the journal as the daemon's"
        " own words. Limits, faults and ends of servers that are known by the log alone may be forged",
        "`systemctl restart mps-control@INSTANCE` at a convenient time, which ends its clients: a daemon that starts"
        " now has its log closed to others",
    ),
    "no-logs": Cause(
        "the daemon cannot write its log directory and runs without logs",
        "let its user write CUDA_MPS_LOG_DIRECTORY",
    ),
}
