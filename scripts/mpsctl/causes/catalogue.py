"""Every cause that the doctor knows, with what to do about it.

What is said of MPS here was seen on an H200 with driver 580 or with the control daemons 535, 550 and 555, or stands
in NVIDIA's documentation; where it is only told by others, the cause says so.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple


class Cause(NamedTuple):
    """What is the matter, and what to do."""

    cause: str
    remedy: str


CAUSES: Mapping[str, Cause] = {
    # -- no daemon, or not this one
    "no-daemon": Cause(
        "no control daemon listens on the pipe directory, so CUDA runs without MPS and says nothing; a socket file that"
        " is still there proves nothing, it outlives its daemon",
        "start the instance (`systemctl start mps-control@INSTANCE`); `mpsctl status` says what keeps it from running",
    ),
    "unit-not-active": Cause(
        "the unit of the instance is not active, so no client finds a daemon",
        "`journalctl -u mps-control@INSTANCE` says why the last start was refused",
    ),
    "front door-closed": Cause(
        "the instance lets no client in: its limits are not yet in force, or a start did not get that far",
        "`systemctl reload mps-control@INSTANCE`, then `mpsctl status`",
    ),
    "daemon-stopped": Cause(
        "the daemon accepts connections and does not answer: it is stopped (SIGSTOP, a debugger) or hangs; clients hang"
        " in cuInit with it",
        "look at its state in `systemctl status mps-control@INSTANCE`; let it go on (SIGCONT), or restart the unit",
    ),
    "session-held": Cause(
        "another front-end holds the daemon's one command session (a prompt left open, or a slow pipeline): commands"
        " are refused, or return nothing with exit code 0",
        "end that session; `mpsctl` waits for its turn",
    ),
    "daemon-not-found": Cause(
        "the front-end found no daemon: CUDA_MPS_PIPE_DIRECTORY is not the daemon's own in that shell, the start"
        " failed without a word (a pipe directory above 87 bytes, or one that cannot be written), or it belongs to"
        " another user",
        "give both the same CUDA_MPS_PIPE_DIRECTORY (`mpsctl env INSTANCE`), and look at the exit code of the start",
    ),
    "already-running": Cause(
        "another control daemon serves that pipe directory: its lock decides, not the pid file or the socket",
        "use the running one; it is named by `mpsctl doctor`. To replace it, send it `quit` on standard input first",
    ),
    "orphan-daemon": Cause(
        "a control daemon runs whose pipe directory or sockets were removed under it: nobody can reach or quit it,"
        " and a second daemon can start beside it",
        "let its clients finish, then end that one process by its process id; never remove a pipe directory before its"
        " daemon has quit",
    ),
    "two-daemons-one-gpu": Cause(
        "two control daemons offer the same GPU: their servers compete for it, and in exclusive mode the second gets"
        " none",
        "leave each GPU to one daemon: send `quit` to the one that is not the instance's, and disable what starts it",
    ),
    "foreign-daemon": Cause(
        "a control daemon that is no instance's runs on this host",
        "find what starts it (its unit, job or container) and leave MPS to one manager",
    ),
    "several-managers": Cause(
        "more than one manager of MPS is on this host (a device plugin, a Slurm prolog, a vendor's unit beside ours)",
        "let one of them manage MPS and switch the others off",
    ),
    "default-pipe-directory": Cause(
        "the daemon serves the default directory /tmp/nvidia-mps, so every CUDA process of the host, and container"
        " runtimes that mount it, becomes a client without asking",
        "set CUDA_MPS_PIPE_DIRECTORY to a directory of its own, for example /run/nvidia-mps/0",
    ),
    "cleaned-pipe-directory": Cause(
        "a cleaner of /tmp removed the lock, the log and the pid file of a live daemon; it still answers, and a second"
        " one could now take over its sockets",
        "do not start a second daemon; restart this one when its clients are done, on a directory under /run",
    ),
    "selinux-label": Cause(
        "SELinux enforces and the pipe directory's label does not let containers connect to its sockets",
        "`semanage fcontext -a -t container_file_t 'DIRECTORY(/.*)?'` and `restorecon -R DIRECTORY`; /run is made"
        " anew at every boot",
    ),
    # -- getting there
    "pipe-directory-closed": Cause(
        "the user may not enter a directory on the way to the pipe directory: its client runs without MPS and says"
        " nothing, and a server that runs as that user cannot connect and ends (805)",
        "let others enter it: `chmod o+x` on the directory that is named",
    ),
    "not-in-group": Cause(
        "only root and the members of one group may connect to the instance (mps_group), and the user is none of them:"
        " its client runs without MPS and says nothing",
        "make the user a member and start its processes anew, or unset mps_group",
    ),
    "pipe-directory-wrong": Cause(
        "the process names another pipe directory than the instance's, so it does not become its client",
        'start it with the instance\'s variables: `eval "$(mpsctl env INSTANCE)"`, or `mpsctl run --instance INSTANCE`',
    ),
    "pipe-directory-missing": Cause(
        "the process has no CUDA_MPS_PIPE_DIRECTORY, so it looks in /tmp/nvidia-mps and runs without MPS",
        'start it with the instance\'s variables: `eval "$(mpsctl env INSTANCE)"`, or `mpsctl run --instance INSTANCE`',
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
        "a pipe directory under /tmp is emptied at boot and by cleaners while the daemon lives, and a directory made"
        " once at installation is gone after the next boot",
        "use RuntimeDirectory=nvidia-mps/%i and /run/nvidia-mps/%i",
    ),
    "pipe-directory-in-shm": Cause(
        "a pipe directory under /dev/shm is hidden in containers by their own /dev/shm, and gone at the next boot",
        "use a directory under /run, and mount it",
    ),
    "visible-devices-renumbered": Cause(
        "CUDA_VISIBLE_DEVICES names a GPU that the daemon does not offer: a daemon numbers its own from 0, so the"
        " host's indices do not hold for its clients",
        "name GPUs by UUID in daemon and clients (`mpsctl env INSTANCE` does), or leave the variable out of clients",
    ),
    "daemon-serves-other-gpus": Cause(
        "the daemon was started with a CUDA_VISIBLE_DEVICES of its own (often one job's) and offers only those GPUs;"
        " clients of the others are told that there is none",
        "start it with the UUIDs that it is to serve; clients of other GPUs need another instance's pipe directory",
    ),
    "started-before-daemon": Cause(
        "the process was started before the present daemon: it found none or lost the former one, and a process that"
        " uses CUDA outside MPS stays there",
        "start it again",
    ),
    "client-outside-mps": Cause(
        "the process uses the GPU and is no MPS client: it has the whole GPU and no limit",
        "start it with `mpsctl run --instance INSTANCE`, which proves that it became a client",
    ),
    "no-cuda-yet": Cause(
        "the process has not opened CUDA, so it is no client of anything yet",
        "look again once it uses the GPU",
    ),
    # -- containers
    "container-without-pipe-directory": Cause(
        "the container has not mounted the pipe directory, so its processes find no daemon",
        "mount it on the same path: `mpsctl env INSTANCE --format docker` prints the options",
    ),
    "container-pipe-variable": Cause(
        "CUDA_MPS_PIPE_DIRECTORY in the container is not the place where the pipe directory is mounted there",
        "set it to the mount's path in the container",
    ),
    "container-ipc": Cause(
        "the container has an IPC namespace and a /dev/shm of its own, which servers of drivers before about 580"
        " need to share with their clients; the connection then breaks with 805",
        "give it `ipc: host` (docker run --ipc=host), or the host's /dev/shm",
    ),
    "container-visible-devices": Cause(
        "CUDA_VISIBLE_DEVICES in the container names GPUs by the host's indices, and there they are numbered from 0",
        "leave it out where the runtime hands over only the instance's GPUs, or name UUIDs",
    ),
    "container-user": Cause(
        "the container runs as another user than the clients that the daemon serves now: on a daemon for one user it"
        " waits until those have ended",
        "run it as the same user, or set mps_multi_user (one fault then ends the clients of all users)",
    ),
    "container-no-gpu": Cause(
        "the container is given no GPU",
        "ask for one: `--gpus` of docker run, `deploy.resources.reservations.devices` or `gpus:` of compose",
    ),
    "clients-hidden-by-pid-namespace": Cause(
        "client 0 in the log: the daemon and its client do not share a pid namespace, so clients cannot be told apart,"
        " and a server in such a container may fail to find itself",
        "give the daemon's container the host's pid namespace (hostPID, --pid=host); clients may keep their own",
    ),
    "user-namespace": Cause(
        "the process is in a user namespace: the daemon sees another user id than the process has inside",
        "let the outer user id be the one that the daemon serves, or use no user namespace",
    ),
    "pid-namespace": Cause(
        "the process is in a pid namespace of its own: the process ids inside are not the daemon's",
        "use the host's process ids (as in `mpsctl status`) with terminate_client",
    ),
    "driver-root-without-shell": Cause(
        "the command is run in a driver root that is no complete system and has no shell",
        "call nvidia-cuda-mps-control by its full path with the driver root's libraries, not through `sh -c` inside it",
    ),
    # -- users
    "waiting-behind-another-user": Cause(
        "the daemon serves one user at a time: a client of another user waits, without an error, until the first user's"
        " clients have ended",
        "run both as one user, give each an instance, or set mps_multi_user (one fault then ends all users' clients)",
    ),
    "multi-user-too-old-gpu": Cause(
        "the GPU is older than Volta, where the flag for several users is taken and clients of others are then refused",
        "one user per daemon on such GPUs (mps_multi_user: false)",
    ),
    "other-user-refused": Cause(
        "the driver refuses this user: with protocol 3 the client's user must be the daemon's (NVIDIA's measurements"
        " with driver 615, root in a container included)",
        "run the client as the server's user",
    ),
    "setter-refused": Cause(
        "only root and the user who started the daemon may change its settings; the refusal is printed with exit"
        " code 0",
        "set it as root, in the instance's file, and let `systemctl reload` put it in force",
    ),
    # -- servers
    "gpu-older-than-volta": Cause(
        "the GPU is older than Volta: the server takes the legacy path, which many present drivers do not get to start",
        "use MPS on Volta or newer",
    ),
    "server-crash-loop": Cause(
        "the daemon starts servers that end at once, again and again; every client gets 805 or 30",
        "read the server's own lines above its end and the kernel's log; a directory that its user may not enter and"
        " a GPU before Volta are the known causes",
    ),
    "server-gone": Cause(
        "the server ended under its clients (it crashed, or was killed, or its daemon was): each of them gets 806 and"
        " must be started again; the daemon starts another server for the next client",
        "start the clients again; never kill a server or a daemon that has clients: `systemctl stop` drains first",
    ),
    "daemon-went-away": Cause(
        "the daemon was restarting while the client connected; in that moment clients see 1, 805, 806 or 999, or run"
        " without MPS",
        "start the client again, under a supervisor that does so; `mpsctl status` shows the restarts",
    ),
    "server-stopped": Cause(
        "the server is stopped (SIGSTOP, a debugger): its clients hang",
        "let it go on (SIGCONT), and find who stopped it",
    ),
    "server-not-ready": Cause(
        "the server is starting, or recovers from a fault and waits for the old clients to end, or ends a client",
        "try again in a second; clients of before the fault must end first",
    ),
    "client-fault": Cause(
        "one client's fatal fault (an illegal address, for one) is every client's on that GPU: all see the same"
        " error, so the one that reports it need not be the culprit",
        "start them all again; find the culprit with compute-sanitizer or CUDA_LAUNCH_BLOCKING=1, outside MPS",
    ),
    "terminated-by-daemon": Cause(
        "the daemon was told to end this client (terminate_client, or mps_limit_bypass: terminate); its contexts are"
        " gone",
        "see `journalctl -u mps-health.service` for who was ended and why",
    ),
    "zombie-client": Cause(
        "a process that has ended or cannot be woken (state Z or D) is still listed as a client and may hold memory",
        "let its parent collect it; end clients with terminate_client first and a signal afterwards, never the reverse",
    ),
    "too-many-clients": Cause(
        "the GPU takes no more client contexts: 48 on Volta and newer up to drivers before 590, 60 from then on, 16"
        " before Volta; one process may hold several",
        "run fewer clients, or spread them over more GPUs (mps_expected_clients has the role refuse it beforehand)",
    ),
    "max-connections-raised": Cause(
        "CUDA_DEVICE_MAX_CONNECTIONS above 2 takes more of the GPU's connections for each client, so fewer clients fit",
        "leave it out of the clients' environment",
    ),
    "stuck-at-worker-thread": Cause(
        "the client connected and its worker thread was the last that the server said: told of drivers before 495"
        " with a memory limit, and of clients of another user",
        "update the driver, or set no memory limit; see whether another user's clients are there",
    ),
    "attached-then-busy": Cause(
        "the client did reach the server and was refused the GPU after that: the daemon is not what failed. Two"
        " managers of MPS on one host are suspected in such reports",
        "see that one manager alone runs MPS on this host, and that the GPU's compute mode is not prohibited",
    ),
    "exclusive-without-daemon": Cause(
        "the GPU is in exclusive or prohibited mode and no daemon serves it: one process has it, all others are told"
        " that it is busy or unavailable",
        "start the instance, or set the mode back: `nvidia-smi -i UUID -c DEFAULT`",
    ),
    "exclusive-and-no-client": Cause(
        "the GPU is exclusive to MPS and the process did not become a client (no pipe directory, a wrong one, or one"
        " that it may not enter)",
        'start it with the instance\'s variables: `eval "$(mpsctl env INSTANCE)"`; `mpsctl doctor --pid PID` says'
        " why not",
    ),
    "persistence-off": Cause(
        "persistence is off: the driver is set up anew for the first client each time, which takes seconds and"
        " widens the time in which clients are told 807",
        "run nvidia-persistenced (`systemctl enable --now nvidia-persistenced`)",
    ),
    "no-driver": Cause(
        "the driver is not loaded or shows no GPU",
        "look at `nvidia-smi` and `mpsctl gpus`",
    ),
    "gpu-lost": Cause(
        "the kernel's log has errors of the GPU itself (Xid): it fell off the bus or needs a reset, or a program made a"
        " fault there",
        "look the number up in NVIDIA's list of Xid errors; 79 and 48 want a reset or a look at the hardware",
    ),
    "mapping-failed": Cause(
        "the driver could not map memory for the server; told of GPUs before Volta",
        "update the driver; use MPS on Volta or newer",
    ),
    "no-partition": Cause(
        "the daemon runs with static partitions and the client names none (CUDA_MPS_SM_PARTITION), or wants more"
        " than is there",
        "name a partition of `lspart`, or start the daemon without -S",
    ),
    "not-supported-under-mps": Cause(
        "the call is not supported here: dynamic parallelism is not under MPS before the hardware and drivers that know"
        " it, and Tegra and WSL lack parts of MPS",
        "run this program outside MPS",
    ),
    "forked-after-cuda": Cause(
        "a process that was forked after CUDA had been initialised cannot use it",
        "start workers with spawn (multiprocessing.set_start_method('spawn')), or before CUDA is used",
    ),
    "open-files-limit": Cause(
        "the process may open few files; NVIDIA's documentation wants 16384 for servers with many clients",
        "raise LimitNOFILE= (systemd) or --ulimit nofile (docker)",
    ),
    "invalid-device": Cause(
        "the program names a device number that it does not see: under MPS devices are numbered from 0 among those"
        " of the daemon",
        "use device 0 on an instance with one GPU, and no host indices",
    ),
    # -- limits
    "own-limit-reached": Cause(
        "the client has used up its own memory limit; the card has room",
        "raise mps_device_memory_limit (new clients have it at once), or let the client take less; its context"
        " counts too",
    ),
    "card-full": Cause(
        "the card itself is full",
        "end or move one of those that hold it, or give each client a limit so that all fit: `mpsctl plan --memory`",
    ),
    "limit-below-context": Cause(
        "the limit is smaller than what a client's context costs, so no client can start",
        "raise the limit; `mpsctl measure` tells the least",
    ),
    "limits-oversubscribed": Cause(
        "the limits of the clients add up to more than the card: a limit is a cap of one process, it reserves"
        " nothing, so the card can be full before any limit is",
        "lower the limit or the number of clients (mps_expected_clients has the role refuse it beforehand)",
    ),
    "limit-is-per-process": Cause(
        "a limit is each client process's own, not a container's or a service's: a service of several processes has it"
        " several times",
        "count processes, not services, in mps_expected_clients, and divide the limit by the processes of a service",
    ),
    "density-too-high": Cause(
        "the contexts of the many clients take much of the card before any data is there",
        "run fewer clients, or set a thread percentage: a context costs less with fewer multiprocessors",
    ),
    "uneven-ranks": Cause(
        "processes that do the same hold very different amounts: the greatest meets the limit while the others have"
        " room",
        "even the work out (batch or shard sizes), or give the large one more; an equal limit suits equal processes",
    ),
    "framework-cache": Cause(
        "the framework keeps memory for itself by the size of the whole card: MPS changes only what is free, not the"
        " total that a process sees",
        "tell it its share: `mpsctl env INSTANCE --hints` has the numbers for PyTorch, TensorFlow and vLLM",
    ),
    "limit-shaken-off": Cause(
        "a CUDA_MPS_PINNED_DEVICE_MEM_LIMIT in the client's environment has an entry that does not parse or names a GPU"
        " that the client cannot see, and that drops every limit, the daemon's included",
        "leave the variable out; the daemon's limit is in force without it. `mpsctl run --memory` writes a right one",
    ),
    "limit-over-reached": Cause(
        "a client holds more than its limit: it got rid of it, or never had one",
        "start it again without CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; `mpsctl status` names it",
    ),
    "client-without-limit": Cause(
        "the client connected when its server had no limit, and keeps that",
        "start it again",
    ),
    "daemon-environment-limit": Cause(
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT in the daemon's environment limits nobody",
        "set it by command, `set_default_device_pinned_mem_limit 0 4G` on standard input, and read it back; an"
        " instance of ours does so at every start",
    ),
    "limit-misread": Cause(
        "the daemon refuses no value and reads it as it likes: a bare number or a percentage is MiB, K is ignored, a"
        " fraction is 1 MiB, and a byte count or a negative number limits nobody",
        "write a whole number with M or G",
    ),
    "limit-not-stored": Cause(
        "the daemon took the limit without a word and reads back nothing: it does not know that name of the GPU, or the"
        " value was none",
        "set it by the daemon's own ordinal (0 on an instance with one GPU), and read it back with the same name",
    ),
    "limit-for-no-device": Cause(
        "the limit was set for a device number that the daemon does not have; it stores nothing or a limit of no GPU",
        "number devices from 0 among the daemon's own, in the order of its CUDA_VISIBLE_DEVICES",
    ),
    "limits-lost-at-restart": Cause(
        "the daemon was started again and its limits were not set again: every default is gone with the process, so new"
        " clients are unlimited",
        "set them at every start and read them back before clients come in; an instance of ours does",
    ),
    "not-as-desired": Cause(
        "what the daemon has is not what is desired: somebody changed it by hand, or a change was not put in force",
        "`systemctl reload mps-control@INSTANCE` sets and reads back every value",
    ),
    "set-before-restart": Cause(
        "what is desired needs a restart of the daemon, which ends its clients",
        "restart the unit when its clients may be lost",
    ),
    "percentage-caps-everyone": Cause(
        "a thread percentage is a cap for each client, not a share: what the others leave idle is not lent out",
        "leave it out (mps_active_thread_percentage: null), unless one client must not crowd out the others",
    ),
    "percentage-set-after-start": Cause(
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is read when the daemon or the client starts: set later it does nothing",
        "set mps_active_thread_percentage; the instance puts it in force by command and reads it back",
    ),
    "utilization-is-no-share": Cause(
        "nvidia-smi's utilisation is the share of time in which any kernel ran, not how much of the GPU it used: it"
        " shows no limit of threads at work",
        "look at the number of multiprocessors that the client sees, or at `mpsctl status`",
    ),
    "total-is-the-whole-card": Cause(
        "device properties and totals show the whole card under a limit (only `free` shrinks), so they say nothing"
        " about whether a limit is in force",
        "`mpsctl status` has the limit from the server's own log; an allocation past it fails with error 2",
    ),
    "driver-too-old-for-limits": Cause(
        "memory limits need CUDA 11.5 (driver 495); with an older driver a client under a limit hangs",
        "update the driver, or set no memory limit",
    ),
    "misspelt-variable": Cause(
        "the variable is none that MPS knows, so it does nothing",
        "correct its name",
    ),
    "quotes-in-value": Cause(
        "the value has quote characters in it, which a shell would have removed and nobody else does: the value does"
        " not parse",
        "write it without quotes",
    ),
    # -- units and scripts
    "command-as-argument": Cause(
        "the control daemon's commands are read from standard input, not from arguments: up to 550 such a call does"
        " nothing and ends with 0, 555 prints its usage and ends with 1",
        "`echo COMMAND | nvidia-cuda-mps-control` in a shell, and read the value back",
    ),
    "quit-as-argument": Cause(
        "`quit` or `-q` as an argument stops nothing (up to 550 with exit code 0); systemd then ends daemon, servers"
        " and clients' contexts the hard way",
        "ExecStop=/bin/sh -c 'echo \"quit -t 20\" | nvidia-cuda-mps-control', with a longer TimeoutStopSec=",
    ),
    "pipeline-without-shell": Cause(
        "systemd runs no shell: pipes, redirections and substitutions in an Exec line are plain words for the first"
        " program",
        "wrap the line: /bin/sh -c '…'",
    ),
    "ordering-cycle": Cause(
        "the unit is ordered after a target that itself comes after the one that wants it: systemd breaks the cycle by"
        " leaving the unit out of the boot, without a failure",
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
        "limits are set at the start and never read back: the daemon refuses nothing and says nothing, and a command"
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
        "the script removes a pipe directory: the lock that keeps a second daemon away lies in it, and a daemon that"
        " lives is orphaned",
        "send `quit` on standard input first and wait until the process is gone",
    ),
    "restart-on-every-run": Cause(
        "MPS is restarted without a need, which ends every client each time",
        "change limits by command on the running daemon; restart only when what changed cannot be changed live",
    ),
    "protocol-3": Cause(
        "the daemon speaks protocol 3 (driver 615 or newer): its default pipe directory is /run/nvidia-mps for root,"
        " logs lie in a directory for each server, and a front-end follows the daemon's protocol, not its own flag",
        "set CUDA_MPS_PIPE_DIRECTORY and the protocol explicitly; instances of ours speak protocol 2",
    ),
    "no-logs": Cause(
        "the daemon cannot write its log directory and runs without logs",
        "let its user write CUDA_MPS_LOG_DIRECTORY",
    ),
    # -- jobs and others
    "distributed-job": Cause(
        "a distributed training run is among the clients: its ranks wait for each other at every step, so a shared GPU"
        " slows all of them, and one client's fault ends the run",
        "run it outside MPS with one GPU per rank, or set mps_distributed_jobs: ignore where it is meant (`mpsctl"
        " loopback` measures what it costs)",
    ),
    "nccl-ranks-on-one-gpu": Cause(
        "NCCL found two ranks on one GPU, which it refuses with MPS as without",
        "give each rank a GPU of its own; up to NCCL 2.29 there is no other way, from 2.30 on"
        " NCCL_MULTI_RANK_GPU_ENABLE=1 (experimental) lets two share one; `mpsctl loopback` tries it",
    ),
    "metal-performance-shaders": Cause(
        "PyTorch's device `mps` is Apple's Metal Performance Shaders, for the GPUs of Macs. NVIDIA's Multi-Process"
        " Service, which this project serves, needs Linux and an NVIDIA GPU, and shares only the initials with it",
        "on NVIDIA GPUs use the device `cuda`, whether or not MPS is there; on a Mac this project has nothing to do",
    ),
}
