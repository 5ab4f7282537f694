"""What keeps a process from being a client, and what ends or refuses one."""

from __future__ import annotations

from typing import Mapping

from mpsctl.causes.catalogue.cause import Cause

_BY_VARIABLES = (
    'start it with the instance\'s variables: `eval "$(mpsctl env INSTANCE)"`, or `mpsctl run --instance INSTANCE`'
)

CAUSES: Mapping[str, Cause] = {
    # -- getting there
    "pipe-directory-closed": Cause(
        "the user may not enter a directory on the way to the pipe directory. Its client runs without MPS and says"
        " nothing; a server that runs as that user cannot connect and ends (805)",
        "let others enter it: `chmod o+x` on the directory that is named",
    ),
    "not-in-group": Cause(
        "only root and the members of one group may connect to the instance (mps_group), and the user is none of them:"
        " the front door refuses its client with error 805",
        "make the user a member and start its processes anew, or unset mps_group",
    ),
    "pipe-directory-wrong": Cause(
        "the process names another pipe directory than the instance's, so it does not become its client",
        _BY_VARIABLES,
    ),
    "pipe-directory-missing": Cause(
        "the process has no CUDA_MPS_PIPE_DIRECTORY, so it looks in the default directory /tmp/nvidia-mps. It becomes"
        " the client of whoever's daemon serves that, or runs without MPS",
        _BY_VARIABLES,
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
        "the process was started before the present daemon: it found none or lost the former one. A process that uses"
        " CUDA outside MPS stays there",
        "start it again",
    ),
    "client-outside-mps": Cause(
        "the process uses the GPU and is no MPS client: it has the whole GPU and no limit",
        "start it with `mpsctl run --instance INSTANCE`, which proves that it became a client",
    ),
    "client-of-another-daemon": Cause(
        "the process is a client of another control daemon, not of an instance: the limits of that daemon hold for it,"
        " if it has any",
        f"{_BY_VARIABLES}; or end the other daemon when its clients are done",
    ),
    "exclusive-and-no-client": Cause(
        "the GPU is exclusive to MPS and the process did not become a client (no pipe directory, a wrong one, or one"
        " that it may not enter)",
        'start it with the instance\'s variables: `eval "$(mpsctl env INSTANCE)"`; `mpsctl doctor --pid PID` says'
        " why not",
    ),
    "no-cuda-yet": Cause(
        "the process has not opened CUDA, so it is no client of anything yet",
        "look again once it uses the GPU",
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
    "no-partition": Cause(
        "the daemon runs with static partitions and the client names none (CUDA_MPS_SM_PARTITION), or wants more"
        " than is there",
        "name a partition of `lspart`, or start the daemon without -S",
    ),
    "not-supported-under-mps": Cause(
        "the call is not supported here: MPS has dynamic parallelism only on hardware and drivers that know it, and"
        " Tegra and WSL lack parts of MPS",
        "run this program outside MPS",
    ),
    # -- users
    "waiting-behind-another-user": Cause(
        "the daemon serves one user at a time: a client of another user waits until the first user's clients have"
        " ended, and at the front door gets error 805 after mps_client_wait_s",
        "run both as one user, give each an instance, or set mps_multi_user (one fault then ends all users' clients)",
    ),
    "waiting-for-server": Cause(
        "the client waits for a server of its own user, which is still starting, failed to start, or does not take it"
        " in",
        "look again in a few seconds; if it still waits, `journalctl -u mps-control@INSTANCE` has the server's lines",
    ),
    "waiting-for-daemon": Cause(
        "the client waits before the front door: the daemon is down, starts, gives no answer, or its limits are not in"
        " force yet. It comes in once they are, or gets error 805 after mps_client_wait_s",
        "where it takes long, `journalctl -u mps-control@INSTANCE` says what is the matter",
    ),
    "waiting-at-front-door": Cause(
        "the front door has not let the client in yet, for a reason that passes by itself",
        "look again in a few seconds; `journalctl -u mps-front-door@INSTANCE` says what became of it",
    ),
    "other-user-refused": Cause(
        "the driver refuses this user: with protocol 3 the client's user must be the daemon's (NVIDIA's measurements"
        " with driver 615, root in a container included)",
        "run the client as the server's user",
    ),
    # -- their end, and how many there may be
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
        " before Volta. One process may hold several",
        "run fewer clients, or spread them over more GPUs (mps_expected_clients has the role refuse it beforehand)",
    ),
    "no-place": Cause(
        "the instance, or a share of it, has as many clients as it takes at once (mps_expected_clients, mps_shares)."
        " One more waits, and gets error 805 after mps_client_wait_s, or at once (mps_over_expected: refuse)",
        "run fewer clients, or raise the number or the share: `mpsctl status INSTANCE` shows who has which place",
    ),
    "more-than-places": Cause(
        "more clients are in than the front door holds places for: the number or a share was lowered under them."
        " Nobody is ended for that, and nobody new comes in before enough have ended",
        "wait until some have ended, or raise mps_expected_clients or the share",
    ),
    "max-connections-raised": Cause(
        "CUDA_DEVICE_MAX_CONNECTIONS above 2 takes more of the GPU's connections for each client, so fewer clients fit",
        "leave it out of the clients' environment",
    ),
    "attached-then-busy": Cause(
        "the client did reach the server and was refused the GPU after that: the daemon is not what failed. Two"
        " managers of MPS on one host are suspected in such reports",
        "see that one manager alone runs MPS on this host, and that the GPU's compute mode is not prohibited",
    ),
}
