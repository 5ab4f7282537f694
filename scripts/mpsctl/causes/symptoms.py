"""CUDA errors and the texts that programs print, with the causes that each can have under MPS, likeliest first.

The codes and names are those of cuda.h and driver_types.h; what they mean under MPS was seen on an H200 with driver
580 or is NVIDIA's documentation of its errors. Texts are matched by the part that does not change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Iterable, Mapping, NamedTuple, Optional

from mpsctl.causes import refusals
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose, quoted
from mpsctl.model.pattern import Pattern

Causes = tuple[tuple[str, str], ...]
"""Names of the catalogue with how sure each is when nothing but the symptom is known."""


class CudaError(NamedTuple):
    """One error: its number, its names in the driver's and the runtime's API, its text, and its causes."""

    code: int
    names: tuple[str, ...]
    text: str
    causes: Causes

    def __str__(self) -> str:
        return f"error {self.code}, {' / '.join(self.names)}: {self.text}"


_UNREACHED: Causes = (
    ("pipe-directory-closed", POSSIBLE),
    ("server-crash-loop", POSSIBLE),
    ("container-ipc", POSSIBLE),
    ("container-without-pipe-directory", POSSIBLE),
    ("daemon-went-away", POSSIBLE),
)
_UNSEEN: Causes = (
    ("daemon-serves-other-gpus", LIKELY),
    ("visible-devices-renumbered", POSSIBLE),
    ("container-no-gpu", POSSIBLE),
    ("no-driver", POSSIBLE),
)
_UNKNOWN: Causes = (("daemon-went-away", POSSIBLE), ("gpu-lost", POSSIBLE))
_MEMORY: Causes = (
    ("own-limit-reached", POSSIBLE),
    ("card-full", POSSIBLE),
    ("limit-below-context", POSSIBLE),
    ("framework-cache", POSSIBLE),
)

ERRORS: tuple[CudaError, ...] = (
    CudaError(
        1,
        ("CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue"),
        "invalid argument",
        (("daemon-went-away", POSSIBLE),),
    ),
    CudaError(2, ("CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation"), "out of memory", _MEMORY),
    CudaError(
        3,
        ("CUDA_ERROR_NOT_INITIALIZED", "cudaErrorInitializationError"),
        "initialization error",
        (("forked-after-cuda", LIKELY), ("daemon-went-away", POSSIBLE)),
    ),
    CudaError(
        30,
        ("cudaErrorUnknown (before CUDA 10.1)",),
        "unknown error",
        (("server-crash-loop", LIKELY), ("gpu-older-than-volta", POSSIBLE)),
    ),
    CudaError(
        46,
        ("CUDA_ERROR_DEVICE_UNAVAILABLE", "cudaErrorDevicesUnavailable"),
        "all CUDA-capable devices are busy or unavailable",
        (
            ("exclusive-and-no-client", LIKELY),
            ("exclusive-without-daemon", POSSIBLE),
            ("attached-then-busy", POSSIBLE),
            ("several-managers", POSSIBLE),
        ),
    ),
    CudaError(100, ("CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice"), "no CUDA-capable device is detected", _UNSEEN),
    CudaError(
        101,
        ("CUDA_ERROR_INVALID_DEVICE", "cudaErrorInvalidDevice"),
        "invalid device ordinal",
        (("invalid-device", LIKELY), ("visible-devices-renumbered", POSSIBLE)),
    ),
    CudaError(
        700,
        ("CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress"),
        "an illegal memory access was encountered",
        (("client-fault", LIKELY),),
    ),
    CudaError(
        800,
        ("CUDA_ERROR_NOT_PERMITTED", "cudaErrorNotPermitted"),
        "operation not permitted",
        (("other-user-refused", LIKELY), ("multi-user-too-old-gpu", POSSIBLE)),
    ),
    CudaError(
        801,
        ("CUDA_ERROR_NOT_SUPPORTED", "cudaErrorNotSupported"),
        "operation not supported",
        (("not-supported-under-mps", POSSIBLE),),
    ),
    CudaError(
        805,
        ("CUDA_ERROR_MPS_CONNECTION_FAILED", "cudaErrorMpsConnectionFailed"),
        "MPS client failed to connect to the MPS control daemon or the MPS server",
        _UNREACHED,
    ),
    CudaError(
        806,
        ("CUDA_ERROR_MPS_RPC_FAILURE", "cudaErrorMpsRpcFailure"),
        "RPC failure between the MPS server and the MPS client",
        (("server-gone", LIKELY), ("daemon-went-away", POSSIBLE)),
    ),
    CudaError(
        807,
        ("CUDA_ERROR_MPS_SERVER_NOT_READY", "cudaErrorMpsServerNotReady"),
        "MPS server is not ready to accept new MPS client requests",
        (
            ("server-not-ready", LIKELY),
            ("client-fault", POSSIBLE),
            ("waiting-behind-another-user", POSSIBLE),
            ("persistence-off", POSSIBLE),
        ),
    ),
    CudaError(
        808,
        ("CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "cudaErrorMpsMaxClientsReached"),
        "the hardware resources required to create MPS client have been exhausted",
        (("too-many-clients", CERTAIN), ("max-connections-raised", POSSIBLE)),
    ),
    CudaError(
        809,
        ("CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "cudaErrorMpsMaxConnectionsReached"),
        "the hardware resources required to support device connections have been exhausted",
        (("max-connections-raised", LIKELY), ("too-many-clients", LIKELY)),
    ),
    CudaError(
        810,
        ("CUDA_ERROR_MPS_CLIENT_TERMINATED", "cudaErrorMpsClientTerminated"),
        "the MPS client has been terminated by the server",
        (("terminated-by-daemon", CERTAIN),),
    ),
    CudaError(
        811,
        ("CUDA_ERROR_CDP_NOT_SUPPORTED", "cudaErrorCdpNotSupported"),
        "CUDA Dynamic Parallelism is not supported",
        (("not-supported-under-mps", CERTAIN),),
    ),
    CudaError(
        915,
        ("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "cudaErrorInvalidResourceConfiguration"),
        "invalid resource configuration",
        (("no-partition", LIKELY),),
    ),
    CudaError(999, ("CUDA_ERROR_UNKNOWN", "cudaErrorUnknown"), "unknown error", _UNKNOWN),
)
BY_CODE = {error.code: error for error in ERRORS}
_BY_NAME = {name.lower(): error for error in reversed(ERRORS) for name in error.names}

OUT_OF_MEMORY, REFUSED = 2, 805
"""What a client meets that has used up its limit, and one that the front door refuses."""

_GPU_GONE = (
    "gpu-lost",
    "gpu-missing",
    "gpu-swapped",
    "mig-switched-off",
    "mig-switched-on",
    "mig-device-gone",
    "driver-upgraded-underneath",
)
_DOWN = ("drained", "unit-masked", "unit-not-active", "front-door-closed", "left-over-server")
_FOREIGN = ("default-pipe-directory", "foreign-daemon")
_REACHING = (
    *_DOWN,
    "no-daemon",
    "daemon-stopped",
    "daemon-hangs",
    "socket-gone",
    "session-held",
    "selinux-label",
    "orphan-daemon",
    "no-driver",
    *_GPU_GONE,
)
RELATED: Mapping[int, tuple[str, ...]] = {
    1: (*_DOWN, *_GPU_GONE),
    2: (
        "memory-held-by-others",
        "limits-oversubscribed",
        "limit-is-per-process",
        "density-too-high",
        "uneven-ranks",
        "limit-over-reached",
    ),
    30: (*_REACHING, *_FOREIGN, "server-failed", "pipe-directory-closed"),
    46: (
        *_REACHING,
        *_FOREIGN,
        "client-outside-mps",
        "pipe-directory-closed",
        "pipe-directory-wrong",
        "two-daemons-one-gpu",
    ),
    100: (*_DOWN, *_FOREIGN, "two-daemons-one-gpu", *_GPU_GONE),
    700: ("gpu-lost",),
    805: (
        *_REACHING,
        *refusals.EVERY,
        *_FOREIGN,
        "server-failed",
        "gpu-older-than-volta",
        "two-daemons-one-gpu",
        "cleaned-pipe-directory",
    ),
    806: ("client-fault", "server-crash-loop", *_DOWN, *_GPU_GONE),
    807: (*_DOWN, *_FOREIGN, "server-crash-loop", "two-daemons-one-gpu", "waiting-for-server"),
    808: ("several-managers", *_FOREIGN),
    999: (*_DOWN, *_GPU_GONE, "client-fault", "server-crash-loop"),
}
"""What else the host may show that explains an error: causes that are told only when they are seen."""

EXPLAIN_LITTLE = (
    "foreign-daemon",
    "default-pipe-directory",
    "several-managers",
    "limits-oversubscribed",
    "not-as-desired",
)
"""Causes of those that leave room for others: they are seen for certain, and need not be why the error came."""

_OF_ERRORS: tuple[tuple[str, int], ...] = (
    (r"MPS client failed to connect to the MPS control daemon or the MPS server", 805),
    (r"RPC failure between the MPS server", 806),
    (r"MPS server is not ready to accept new MPS client", 807),
    (r"required to create MPS client have been exhausted", 808),
    (r"required to support device connections have been exhausted", 809),
    (r"MPS client has been terminated by the server|client terminated by server", 810),
    (r"CUDA-capable device(?:\(s\)|s) (?:is/)?are busy or unavailable", 46),
    (r"no CUDA-capable device is detected", 100),
    (r"No CUDA GPUs are available", 100),
    (r"an illegal memory access was encountered", 700),
    (r"CUDA(?: error:)? out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED", 2),
    (r"invalid resource configuration", 915),
    (r"(?i:cuda)\b[^\n]{0,200}?\binitialization error|Cannot re-initialize CUDA in forked subprocess", 3),
)
"""The texts by which programs name an error without its number."""

_OF_CAUSES: tuple[tuple[str, Causes], ...] = (
    (r"Duplicate GPU detected", (("nccl-ranks-on-one-gpu", CERTAIN),)),
    (r"Multiple Ranks are using the same GPU/Partition", (("nccl-ranks-on-one-gpu", CERTAIN),)),
    (
        r"Cannot find MPS control daemon process",
        (("daemon-not-found", LIKELY), ("no-daemon", POSSIBLE), ("orphan-daemon", POSSIBLE)),
    ),
    (r"Cannot send command to MPS control daemon process", (("session-held", LIKELY), ("daemon-stopped", POSSIBLE))),
    (r"An instance of this daemon is already running", (("already-running", CERTAIN),)),
    (r"incompatible/legacy MPS daemon is already running", (("protocol-3", LIKELY), ("already-running", CERTAIN))),
    (r"Cannot access CUDA_MPS_PIPE_DIRECTORY", (("pipe-directory-unwritable", CERTAIN),)),
    (r"Failed writing log files to directory", (("no-logs", CERTAIN),)),
    (r"Insufficient privileges for UID|Not enough privilege to execute", (("setter-refused", CERTAIN),)),
    (r"Failed to start ?: invalid argument", (("gpu-older-than-volta", LIKELY), ("server-crash-loop", LIKELY))),
    (
        r"MPS is only supported on 64-bit Linux platforms, with an SM",
        (("gpu-older-than-volta", LIKELY),),
    ),
    (r"chroot: failed to run command", (("driver-root-without-shell", CERTAIN),)),
    (
        r"Found ordering cycle on \S*mps\S*|Job \S*mps\S* deleted to break ordering cycle",
        (("ordering-cycle", CERTAIN),),
    ),
    (r"Cannot map memory with base addr", (("mapping-failed", LIKELY), ("gpu-older-than-volta", POSSIBLE))),
    (r"NVRM: Xid", (("gpu-lost", LIKELY),)),
    (r"avc: +denied [^\n]{0,1000}?(?:nvidia-mps|mps_|/mps|cuda_mps)", (("selinux-label", LIKELY),)),
    (r"lsetxattr \S*: (?:permission denied|invalid argument)", (("selinux-label", LIKELY),)),
    (r"^[^|]*(?:GPU-Util|utili[sz]ation\.gpu|gpu utili[sz]ation)", (("utilization-is-no-share", POSSIBLE),)),
    (r"total_memory|totalGlobalMem", (("total-is-the-whole-card", POSSIBLE),)),
    (
        r"MPS backend out of memory|torch\.backends\.mps|device[=:( ]*['\"]mps|torch\.mps\b"
        r"|PYTORCH_(?:MPS_|ENABLE_MPS_)|MPS (?:device|framework)|\bmps:0\b|type:? MPS\b",
        (("metal-performance-shaders", CERTAIN),),
    ),
)

_NUMBERED = Pattern(
    r"(?:cuda|CUDA|Cuda|\bcu[A-Z])[^\n]{0,80}?(?:[Ee]rror|code|status|returned|failed)[^\n\d]{0,12}\b(?P<cuda>\d{1,3})\b"
    r"|\b[Ee]rror (?P<mps>80[0-9]|81[01]|915)\b"
    r"|with status (?P<status>80[5-9]|810)\b"
)
_NAMED = Pattern(r"\b(?:CUDA_ERROR_[A-Z_]+|cudaError[A-Za-z]+)\b")
_CLIENT_LEFT = Pattern(r"recei?vi?e command with status 806, assuming client")
"""What a server says of every client that ends in good order (driver 580, H200)."""


@dataclass
class Understood:
    """What an error's text was understood to be. ``lines`` are those that carried it, by the error or cause."""

    errors: list[CudaError] = field(default_factory=list)
    causes: list[tuple[str, str]] = field(default_factory=list)
    lines: dict[object, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.errors or self.causes)

    def __str__(self) -> str:
        return "; ".join([*map(str, self.errors), *dict.fromkeys(line for _, line in self._of_causes())])

    def _of_causes(self) -> list[tuple[str, str]]:
        return [(name, self.lines[name]) for name, _ in self.causes]

    @property
    def possible(self) -> dict[str, str]:
        """Every cause that what was understood can have, with how sure it is by that alone."""
        ranked: dict[str, str] = {}
        for name, certainty in [*self.causes, *(pair for error in self.errors for pair in error.causes)]:
            ranked.setdefault(name, certainty)
        return ranked

    def diagnoses(self) -> list[Diagnosis]:
        """What can be said when nothing but the text is known."""
        found = [diagnose(name, certainty, self.lines[name]) for name, certainty in self.causes]
        for error in self.errors:
            line = self.lines[error.code]
            evidence = f"nothing but error {error.code}" if line == str(error) else line
            found += [diagnose(name, certainty, evidence) for name, certainty in error.causes]
        return found


def read_error(text: str) -> Understood:
    """What a person gave as the error: a number, a CUDA name, ``mps``, or a program's text."""
    word = text.strip()
    found = Understood()
    if word.lower() == "mps":
        _add_causes(found, (("metal-performance-shaders", CERTAIN),), f"asked for {word!r}")
        return found
    error = by_word(word)
    if error is not None:
        _add_error(found, error, str(error))
        return found
    return read_lines(word.splitlines())


def by_word(word: str) -> Optional[CudaError]:
    """The error of a number or a name, in whatever case, or None."""
    number = re.fullmatch(r"(?:(?:cuda )?error )?(\d{1,3})", word.lower())
    return BY_CODE.get(int(number[1])) if number else _BY_NAME.get(word.lower())


LINE_CHARACTERS = 4000
"""What programs say on one line is shorter; of a longer one the rest is not read."""


def read_lines(lines: Iterable[str]) -> Understood:
    """What known texts stand in some lines. Of unknown lines nothing is said."""
    found = Understood()
    for line in (line[:LINE_CHARACTERS] for line in lines):
        for error in _errors_in(line):
            _add_error(found, error, line.strip())
        for pattern, causes in _OF_CAUSES:
            if re.search(pattern, line):
                _add_causes(found, causes, line.strip())
    return found


def _errors_in(line: str) -> list[CudaError]:
    if _CLIENT_LEFT.search(line) or "MPS backend out of memory" in line:
        return []
    codes = [code for pattern, code in _OF_ERRORS if re.search(pattern, line)]
    codes += [error.code for name in _NAMED.findall(line) for error in [_BY_NAME.get(name.lower())] if error]
    if not codes:
        codes += [int(match["cuda"] or match["mps"] or match["status"]) for match in _NUMBERED.finditer(line)]
    return [BY_CODE[code] for code in dict.fromkeys(codes) if code in BY_CODE]


def _add_error(found: Understood, error: CudaError, line: str) -> None:
    if error not in found.errors:
        found.errors.append(error)
        found.lines[error.code] = quoted(line)


def _add_causes(found: Understood, causes: Causes, line: str) -> None:
    for name, certainty in causes:
        if name not in found.lines:
            found.causes.append((name, certainty))
            found.lines[name] = quoted(line)
