"""Given an error's number, name or text, which causes the doctor names, and which first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsctl.causes import memory, symptoms
from mpsctl.causes.catalogue import CAUSES
from mpsctl.causes.diagnosis import in_order

CODES = [1, 2, 3, 30, 46, 100, 101, 700, 800, 801, 805, 806, 807, 808, 809, 810, 811, 915, 999]
NAMES = {
    "CUDA_ERROR_OUT_OF_MEMORY": 2,
    "cudaErrorMemoryAllocation": 2,
    "CUDA_ERROR_NOT_INITIALIZED": 3,
    "CUDA_ERROR_DEVICE_UNAVAILABLE": 46,
    "cudaErrorDevicesUnavailable": 46,
    "CUDA_ERROR_NO_DEVICE": 100,
    "CUDA_ERROR_ILLEGAL_ADDRESS": 700,
    "cudaErrorNotPermitted": 800,
    "CUDA_ERROR_MPS_CONNECTION_FAILED": 805,
    "cudaErrorMpsRpcFailure": 806,
    "cudaErrorMpsServerNotReady": 807,
    "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED": 808,
    "cudaErrorMpsMaxConnectionsReached": 809,
    "CUDA_ERROR_MPS_CLIENT_TERMINATED": 810,
    "CUDA_ERROR_CDP_NOT_SUPPORTED": 811,
    "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION": 915,
    "CUDA_ERROR_UNKNOWN": 999,
    "cudaErrorUnknown": 999,
}
TEXTS = [
    # what programs and frameworks print, and the first cause
    ("Error 805: MPS client failed to connect to the MPS control daemon or the MPS server", "pipe-directory-closed"),
    (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling"
        " NumCudaDevices() that might have already set an error? Error 807: MPS server is not ready to accept new MPS"
        " client requests",
        "server-not-ready",
    ),
    ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "exclusive-and-no-client"),
    ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "exclusive-and-no-client"),
    ("RuntimeError: No CUDA GPUs are available", "daemon-serves-other-gpus"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "own-limit-reached"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "client-fault"),
    ("CUDA error: initialization error", "forked-after-cuda"),
    ("cuInit failed: CUDA_ERROR_NOT_PERMITTED", "other-user-refused"),
    ("cuCtxCreate returned 808", "too-many-clients"),
    ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 6000", "nccl-ranks-on-one-gpu"),
    ("Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1", "nccl-ranks-on-one-gpu"),
    ("Cannot find MPS control daemon process", "daemon-not-found"),
    ("Cannot send command to MPS control daemon process", "session-held"),
    ("An instance of this daemon is already running", "already-running"),
    ("An incompatible/legacy MPS daemon is already running", "already-running"),
    ("Cannot access CUDA_MPS_PIPE_DIRECTORY=/srv/none/mps", "pipe-directory-unwritable"),
    ("Warning: Failed writing log files to directory [/var/log/x]. No logs will be available.", "no-logs"),
    (
        "Insufficient privileges for UID 1000. Control deamon settings can only be modified by the user who started it"
        " or by the root user.",
        "setter-refused",
    ),
    ("Not enough privilege to execute quit command", "setter-refused"),
    ("[2024-05-01 10:00:00.100 Legacy Server   425] Failed to start : invalid argument", "gpu-older-than-volta"),
    ("chroot: failed to run command 'sh': No such file or directory", "driver-root-without-shell"),
    (
        "Job nvidia-mps-gpu0.service/start deleted to break ordering cycle starting with multi-user.target/start",
        "ordering-cycle",
    ),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.", "gpu-lost"),
    ("Cannot map memory with base addr 0x7f00 and size of 0x200 pages", "mapping-failed"),
    ("lsetxattr /mps/nvidia.com/gpu/pipe: permission denied", "selinux-label"),
    ("MPS backend out of memory (MPS allocated: 8.8 GB, max allowed: 9.07 GB).", "metal-performance-shaders"),
    ("assert torch.backends.mps.is_available()", "metal-performance-shaders"),
    ('model.to(device="mps")', "metal-performance-shaders"),
    ("nvidia-smi shows GPU-Util 99 % whatever the percentage", "utilization-is-no-share"),
    ("torch.cuda.get_device_properties(0).total_memory is 47697362944", "total-is-the-whole-card"),
]


def first(text: str) -> str:
    return in_order(symptoms.read_error(text).diagnoses())[0].name


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained(code: int) -> None:
    for text in (str(code), f"error {code}", f"CUDA error {code}"):
        understood = symptoms.read_error(text)
        assert [error.code for error in understood.errors] == [code]
        assert understood.diagnoses()


def test_there_is_no_code_that_is_not_tested() -> None:
    assert sorted(symptoms.BY_CODE) == CODES


@pytest.mark.parametrize(("name", "code"), NAMES.items())
def test_a_name_is_its_code_in_any_case_and_inside_a_text(name: str, code: int) -> None:
    for text in (name, name.lower(), f"the call failed: {name} (see above)"):
        assert [error.code for error in symptoms.read_error(text).errors] == [code]


@pytest.mark.parametrize(("text", "cause"), TEXTS)
def test_a_known_text_has_the_right_cause_first(text: str, cause: str) -> None:
    assert first(text) == cause


def test_memory_of_the_other_mps_is_no_error_of_cuda() -> None:
    understood = symptoms.read_error("RuntimeError: MPS backend out of memory (MPS allocated: 8.8 GB)")
    assert list(understood.possible) == ["metal-performance-shaders"]


def test_the_word_mps_asks_for_the_other_one() -> None:
    assert list(symptoms.read_error("mps").possible) == ["metal-performance-shaders"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "12",
        "1000",
        "frobnicate",
        "error",
        "CUDA_ERROR_NO_SUCH",
        "cudaErrorNone",
        "[Errno 2] No such file",
        "exit status 1",
        "line 805 of the file",
        "| Fan  Temp   Perf  Pwr:Usage/Cap | Memory-Usage | GPU-Util  Compute M. |",
        "Server failed to recevie command with status 806, assuming client {PID: 426, Context ID: 1} exit",
    ],
)
def test_of_what_is_not_known_nothing_is_said(text: str) -> None:
    assert not symptoms.read_error(text)


@given(st.text())
def test_no_text_is_too_strange(text: str) -> None:
    for one in symptoms.read_error(text).diagnoses():
        assert one.name in CAUSES
    memory.from_text(text)


def test_every_cause_of_the_tables_is_in_the_catalogue() -> None:
    named = {name for error in symptoms.ERRORS for name, _ in error.causes}
    named |= {name for names in symptoms.RELATED.values() for name in names}
    assert named <= set(CAUSES)
    assert set(symptoms.RELATED) <= set(symptoms.BY_CODE)


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_a_cause_is_told_in_plain_words_and_ends_no_process_by_its_name(name: str) -> None:
    cause = CAUSES[name]
    assert name == name.lower().replace("_", "-")
    for text in cause:
        assert text
        assert not text.endswith(".")
        assert "pkill" not in text
        assert "killall" not in text


# -- PyTorch's numbers

UNDER_A_LIMIT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 MiB. GPU 0 has a total capacity of 139.80"
    " GiB of which 37.85 MiB is free. Including non-PyTorch memory, this process has 1.96 GiB memory in use. Of the"
    " allocated memory 1.37 GiB is allocated by PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated."
)
FULL_CARD = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.10 GiB is"
    " free. Process 11 has 40.00 GiB memory in use. Process 12 has 30.00 GiB memory in use. Including non-PyTorch"
    " memory, this process has 8.00 GiB memory in use. Of the allocated memory 7.20 GiB is allocated by PyTorch, and"
    " 10.00 MiB is reserved by PyTorch but unallocated."
)
KEPT = (
    "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 100.00 MiB"
    " is free. Including non-PyTorch memory, this process has 79.00 GiB memory in use. Of the allocated memory 40.00"
    " GiB is allocated by PyTorch, and 38.00 GiB is reserved by PyTorch but unallocated."
)
OLD = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 39.59 GiB total capacity; 1.20 GiB already allocated;"
    " 10.00 MiB free; 1.30 GiB reserved in total by PyTorch)"
)


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        (UNDER_A_LIMIT, ["own-limit-reached"]),
        (FULL_CARD, ["card-full"]),
        (KEPT, ["card-full", "framework-cache"]),
        (OLD, ["own-limit-reached"]),
        ("CUDA out of memory.", []),
    ],
    ids=["under a limit on an h200", "full card", "kept by the allocator", "torch 1", "no numbers"],
)
def test_the_numbers_tell_the_limit_from_the_full_card(text: str, causes: list[str]) -> None:
    assert [one.name for one in memory.from_text(text)] == causes


def test_the_numbers_stand_in_the_evidence() -> None:
    (one,) = memory.from_text(UNDER_A_LIMIT)
    assert "total 143155 MiB, free 38 MiB, this process 2007 MiB" in one.evidence[0]
