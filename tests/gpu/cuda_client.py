#!/usr/bin/env python3
"""A bare CUDA client through libcuda by ctypes: no toolkit, no package.

It creates one context, looks at what it may have, and prints one JSON line:
``mps`` (device attribute 133), ``free_mib``/``total_mib`` (cuMemGetInfo), ``sms`` (attribute 16),
``init_s``/``context_s``. With ``--allocate-mib N`` it tries to allocate N MiB in one piece and says
whether that worked; with ``--hold-s S`` it keeps the context that long, with ``--hold-while FILE`` as long as
there is that file, probing it all the time, and prints a second line that says how it ended and what is free
to it then. ``--take-mib N`` keeps N MiB meanwhile (or as much of it as there is, with ``--take-all``); with
``--fault-on FILE`` it writes to an illegal address as soon as there is that file. With ``--spin-ms N`` it is always in
a kernel of N ms, until it is ended; ``--stubborn`` ignores SIGTERM. A CUDA error ends it with exit
code 1 and a JSON line that names the call and the code.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time


class CudaError(Exception):
    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} returned {code} ({name})")
        self.call, self.code, self.name = call, code, name


WILD_WRITE = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry wild_write()
{
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 16;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
\0"""


SPIN = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .pred %goes_on;
    .reg .u64 %end, %now, %span;
    ld.param.u64 %span, [nanoseconds];
    mov.u64 %end, %globaltimer;
    add.u64 %end, %end, %span;
again:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %goes_on, %now, %end;
    @%goes_on bra again;
    ret;
}
\0"""


class Cuda:
    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"unknown").decode())

    def attribute(self, which: int, device: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value

    def take_mib(self, wanted_mib: int, as_much_as_there_is: bool) -> int:
        """Allocate and keep memory; how much it was."""
        taken_mib, piece_mib = 0, wanted_mib
        while taken_mib < wanted_mib and piece_mib:
            piece_mib = min(piece_mib, wanted_mib - taken_mib)
            pointer = ctypes.c_uint64()
            try:
                self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(piece_mib << 20))
                taken_mib += piece_mib
            except CudaError:
                if not as_much_as_there_is:
                    raise
                piece_mib //= 2
        return taken_mib

    def spin(self, milliseconds: int) -> None:
        """Kernels of that length one after the other, until an error."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), SPIN)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"spin")
        span = ctypes.c_uint64(milliseconds * 1_000_000)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(span), ctypes.c_void_p))
        while True:
            self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
            self.call("cuCtxSynchronize")

    def write_wildly(self) -> None:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), WILD_WRITE)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"wild_write")
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        self.call("cuCtxSynchronize")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--label", default="")
    parser.add_argument("--uid", type=int, help="become this user before CUDA is touched")
    parser.add_argument("--allocate-mib", type=int, action="append", default=[])
    parser.add_argument("--hold-s", type=float, default=0.0)
    parser.add_argument("--hold-while", metavar="FILE")
    parser.add_argument("--take-mib", type=int, default=0)
    parser.add_argument("--take-all", action="store_true")
    parser.add_argument("--fault-on", metavar="FILE")
    parser.add_argument("--spin-ms", type=int, default=0)
    parser.add_argument("--stubborn", action="store_true")
    options = parser.parse_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.uid is not None:
        os.setgroups([])
        os.setgid(options.uid)
        os.setuid(options.uid)
    said: dict[str, object] = {"label": options.label, "pid": os.getpid(), "uid": os.getuid()}
    try:
        cuda = Cuda()
        begin = time.monotonic()
        cuda.call("cuInit", 0)
        said["init_s"] = round(time.monotonic() - begin, 3)
        device = ctypes.c_int()
        cuda.call("cuDeviceGet", ctypes.byref(device), 0)
        begin = time.monotonic()
        context = ctypes.c_void_p()
        cuda.call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        said["context_s"] = round(time.monotonic() - begin, 3)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        said["free_mib"], said["total_mib"] = free.value >> 20, total.value >> 20
        said["mps"], said["sms"] = cuda.attribute(133, device.value), cuda.attribute(16, device.value)
        for size_mib in options.allocate_mib:
            pointer = ctypes.c_uint64()
            try:
                cuda.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_mib << 20))
                cuda.call("cuMemFree_v2", pointer)
                said[f"allocate_{size_mib}_mib"] = "ok"
            except CudaError as error:
                said[f"allocate_{size_mib}_mib"] = error.code
        if options.take_mib:
            said["taken_mib"] = cuda.take_mib(options.take_mib, options.take_all)
        print(json.dumps(said), flush=True)
        if options.spin_ms:
            cuda.spin(options.spin_ms)
        end = time.monotonic() + options.hold_s
        while time.monotonic() < end or (options.hold_while and os.path.exists(options.hold_while)):
            time.sleep(0.2)
            if options.fault_on and os.path.exists(options.fault_on):
                cuda.write_wildly()
            cuda.call("cuCtxSynchronize")
        if options.hold_s or options.hold_while:
            cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
            print(json.dumps({"label": options.label, "held": "ok", "free_mib": free.value >> 20}), flush=True)
        return 0
    except CudaError as error:
        said.update({"failed": error.call, "code": error.code, "name": error.name})
    except OSError as error:
        said.update({"failed": "libcuda.so.1", "name": str(error)})
    print(json.dumps(said), flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
