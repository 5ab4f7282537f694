"""What is wrong with the GPUs, the driver and the compute modes."""

from __future__ import annotations

from typing import Mapping

from mpsctl.causes.catalogue.cause import Cause

CAUSES: Mapping[str, Cause] = {
    "no-driver": Cause(
        "the driver is not loaded, or it shows no GPU",
        "look at `nvidia-smi` and `dmesg`; load the driver, or install the one for this card",
    ),
    "driver-upgraded-underneath": Cause(
        "the driver's packages were upgraded while the old kernel module stayed loaded. NVML and CUDA refuse such a"
        " mix; programs that started before go on",
        "reboot the host, or stop every process on the GPUs and load the new module",
    ),
    "gpu-missing": Cause(
        "a GPU that the instance needs is not on this host any more: it fell off the bus, was reset or was taken out",
        "look at `dmesg` for its address, then reset the GPU (`nvidia-smi --gpu-reset`) or reboot the host, and restart"
        " the instance. Where the card was taken out, name another GPU (`mpsctl gpus`)",
    ),
    "mig-switched-off": Cause(
        "the instance names a MIG device, and no GPU of this host is split any more: MIG was switched off",
        "switch MIG on again and make the device, or name other GPUs (`mpsctl gpus`); then restart the instance",
    ),
    "mig-device-gone": Cause(
        "the instance names a MIG device that is not there any more: MIG devices get new UUIDs when they are made anew",
        "name those of `mpsctl gpus` in mps_instances; then restart the instance",
    ),
    "mig-switched-on": Cause(
        "the instance names a whole GPU that is split by MIG now: a server cannot use it whole",
        "name its MIG devices (`mpsctl gpus`), or switch MIG off; then restart the instance",
    ),
    "gpu-swapped": Cause(
        "the daemon serves a GPU that is not on this host any more, and another GPU has its index or its slot: the card"
        " was swapped. The daemon knows GPUs by UUID and cannot see the new one",
        "restart the instance when its clients may be lost: `systemctl restart mps-control@INSTANCE`",
    ),
    "gpu-lost": Cause(
        "the kernel's log has errors of the GPU itself (Xid): it fell off the bus or needs a reset, or a program made a"
        " fault there",
        "look the number up in NVIDIA's list of Xid errors; 79 and 48 want a reset or a look at the hardware",
    ),
    "exclusive-without-daemon": Cause(
        "the GPU is in exclusive or prohibited mode and no daemon serves it: one process has it, all others are told"
        " that it is busy or unavailable",
        "start the instance, or set the mode back: `nvidia-smi -i UUID -c DEFAULT`",
    ),
    "persistence-off": Cause(
        "persistence is off: the driver is set up anew for the first client each time. That takes seconds, in which"
        " clients are told 807",
        "run nvidia-persistenced (`systemctl enable --now nvidia-persistenced`)",
    ),
    "gpu-older-than-volta": Cause(
        "the GPU is older than Volta: its server is of the legacy kind, which many present drivers do not get to start",
        "use MPS on Volta or newer",
    ),
    "multi-user-too-old-gpu": Cause(
        "the GPU is older than Volta: the daemon takes the flag for several users there, and clients of others are"
        " refused all the same",
        "one user per daemon on such GPUs (mps_multi_user: false)",
    ),
    "mapping-failed": Cause(
        "the driver could not map memory for the server; told of GPUs before Volta",
        "update the driver; use MPS on Volta or newer",
    ),
}
