"""What is wrong with limits of memory and threads, and who took the memory."""

from __future__ import annotations

from typing import Mapping

from mpsctl.causes.catalogue.cause import Cause

CAUSES: Mapping[str, Cause] = {
    "own-limit-reached": Cause(
        "the client has used up its own memory limit: its next allocation fails, however much of the card is free",
        "raise mps_device_memory_limit (new clients have it at once), or let the client take less; its context"
        " counts too",
    ),
    "card-full": Cause(
        "the card itself is full: the next allocation fails, also of a client that is below its limit",
        "end or move one of those that hold it, or give each client a limit so that all fit: `mpsctl plan --memory`",
    ),
    "memory-held-by-others": Cause(
        "processes that are no clients of the instance hold memory that its clients count on. A limit holds back nobody"
        " outside MPS and reserves nothing",
        "end or move the processes that are named, or start them as clients (`mpsctl run --instance INSTANCE`)",
    ),
    "limit-below-context": Cause(
        "the limit is smaller than what a client's context costs, so no client can start",
        "raise the limit; `mpsctl measure` tells the least",
    ),
    "limits-oversubscribed": Cause(
        "the limits of the clients add up to more than the card. A limit is a cap of one process and reserves nothing,"
        " so the card can be full before any client is at its limit",
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
    "limit-bypassed": Cause(
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT in the client's environment has an entry that does not parse or names a GPU"
        " that the client cannot see. That drops every limit, the daemon's included",
        "leave the variable out; the daemon's limit is in force without it. `mpsctl run --memory` writes a right one",
    ),
    "limit-over-reached": Cause(
        "a client holds more memory than its limit allows: it bypassed the limit, or never had one",
        "start it again without CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; `mpsctl status` names it",
    ),
    "client-without-limit": Cause(
        "the client connected when its server had no limit, or began with a server that has ended, and has none",
        "start it again",
    ),
    "daemon-environment-limit": Cause(
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT in the daemon's environment limits nobody",
        "set it by command, `set_default_device_pinned_mem_limit 0 4G` on standard input, and read it back; an"
        " instance of ours does so at every start",
    ),
    "limit-misread": Cause(
        "the daemon refuses no value. To it a bare number or a percentage is MiB, K is nothing, and 1.5G is 1 MiB. A"
        " count of bytes or a negative number limits nobody",
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
        "the daemon was started again and its limits were not set again. Every default is gone with the old process, so"
        " new clients are unlimited",
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
    "utilization-is-no-share": Cause(
        "nvidia-smi's utilisation is the share of time in which any kernel ran, not how much of the GPU it used: it"
        " shows no limit of threads at work",
        "look at the number of multiprocessors that the client sees, or at `mpsctl status`",
    ),
    "total-is-the-whole-card": Cause(
        "device properties and totals show the whole card under a limit; only `free` shrinks. So they do not tell"
        " whether a limit is in force",
        "`mpsctl status` has the limit from the server's own log; an allocation past it fails with error 2",
    ),
    "misspelt-variable": Cause(
        "the variable is none that MPS knows, so it does nothing",
        "correct its name",
    ),
    "quotes-in-value": Cause(
        "the value has quote characters in it. A shell would have removed them, nobody else does: the value does not"
        " parse",
        "write it without quotes",
    ),
}
