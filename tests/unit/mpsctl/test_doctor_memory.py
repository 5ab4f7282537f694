"""Given memory that is short on a GPU, the doctor says who took it: the client's own limit, the card, or others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consulting import SERVER, ask, find, hold, join, names, outsider, variables
from fakes import H200_MIB, FakeDaemon, Host, h200, uuid
from mpsctl.model.gpu import Load

LIMIT_MIB = 4096


@pytest.mark.usefixtures("shown_processes")
def test_without_an_instance_the_error_alone_is_explained(host: Host) -> None:
    assert names(host, errors=["2"])[:2] == ["own-limit-reached", "card-full"]


# -- the client's own limit


def test_a_client_out_of_its_limit(host: Host, running: FakeDaemon) -> None:
    pid = join(host, running, held_mib=LIMIT_MIB - 8)
    found = ask(host).diagnoses
    assert (found[0].name, found[0].certainty) == ("own-limit-reached", "certain")
    assert f"client {pid} " in found[0].evidence[0]
    assert "holds 4088 MiB of its limit of 4096 MiB" in found[0].evidence[0]
    for text in ("2", "CUDA out of memory. Tried to allocate 1.00 GiB"):
        assert names(host, errors=[text])[0] == "own-limit-reached"
        assert "card-full" not in names(host, errors=[text])
    assert names(host, pids=[pid]) == ["own-limit-reached"]


@pytest.mark.parametrize(
    ("held_mib", "sure"), [(LIMIT_MIB - 8, "certain"), (LIMIT_MIB - 60, "likely"), (LIMIT_MIB // 2, None)]
)
def test_a_client_with_room_below_its_limit_has_not_reached_it(
    host: Host, running: FakeDaemon, held_mib: int, sure: str
) -> None:
    pid = join(host, running, held_mib=held_mib)
    join(host, running)
    assert [one.certainty for one in ask(host, pids=[pid]).diagnoses] == ([sure] if sure else [])
    seen = [one for one in ask(host, errors=["2"]).diagnoses if one.name == "own-limit-reached"]
    assert [one.certainty for one in seen] == [sure or "possible"]


def test_only_the_client_that_is_asked_about(host: Host, running: FakeDaemon) -> None:
    full, other = join(host, running, held_mib=LIMIT_MIB), join(host, running)
    assert names(host, pids=[full]) == ["own-limit-reached"]
    assert names(host, pids=[other]) == []


def test_a_limit_below_a_context(host: Host, shown_processes: Host) -> None:
    host.desired(DeviceMemoryLimit="400M")
    host.start()
    assert names(host, errors=["2"])[0] == "limit-below-context"


# -- others


@pytest.mark.parametrize("left_mib", [200, 700, 3000])
def test_somebody_outside_mps_who_holds_nearly_all_of_the_card(host: Host, running: FakeDaemon, left_mib: int) -> None:
    """Free memory is held against the limit: what is left may be more than a context and less than a client's share."""
    hog = outsider(host, {}, uid=1001, held_mib=H200_MIB - 616 - 66 - left_mib)
    for text in ("2", "cudaErrorMemoryAllocation"):
        first = ask(host, errors=[text]).diagnoses[0]
        assert (first.name, first.certainty) == ("memory-held-by-others", "certain")
        held_mib = H200_MIB - 616 - 66 - left_mib
        assert f"pid {hog} (python3 train.py, user 1001) holds {held_mib} MiB" in first.evidence[0]
        assert not {"own-limit-reached", "card-full"} & set(names(host, errors=[text]))
    assert "memory-held-by-others" in names(host)


def test_of_several_outsiders_the_greatest_comes_first(host: Host, running: FakeDaemon) -> None:
    small = outsider(host, {}, held_mib=1000)
    great = outsider(host, {}, held_mib=H200_MIB - 616 - 66 - 1000 - 500)
    first, *more = find(host, "memory-held-by-others", errors=["2"]).evidence
    assert f"pid {great} " in first
    assert f"pid {small} " in more[0]


def test_numbers_of_pytorch_that_look_like_a_limit_are_refuted_by_what_is_seen(host: Host, running: FakeDaemon) -> None:
    """A process of another container is none that PyTorch counts: what it holds looks like a limit's doing."""
    text = (
        "CUDA out of memory. Tried to allocate 200.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 37.85 MiB"
        " is free. Including non-PyTorch memory, this process has 0.60 GiB memory in use."
    )
    assert names(host, errors=[text])[0] == "own-limit-reached"
    outsider(host, {}, held_mib=H200_MIB - 616 - 66 - 40)
    assert names(host, errors=[text])[0] == "memory-held-by-others"
    assert "own-limit-reached" not in names(host, errors=[text])


def test_outsiders_are_named_where_no_limit_is_set(host: Host, shown_processes: Host) -> None:
    """Nobody knows what a client counts on: it is possible, and told to those who met the error alone."""
    host.desired(ComputeMode="default")
    host.systemd.unit("mps-control@0.service").enabled = True
    host.start()
    hog = outsider(host, variables(host), held_mib=100_000)
    found = find(host, "memory-held-by-others", errors=["2"])
    assert found.certainty == "possible"
    assert any(f"pid {hog} " in line for line in found.evidence)
    assert "memory-held-by-others" not in names(host)


def test_little_that_others_hold_beside_room_for_a_client_is_no_shortage(host: Host, running: FakeDaemon) -> None:
    outsider(host, {}, held_mib=1000)
    assert "memory-held-by-others" not in names(host)
    assert find(host, "memory-held-by-others", errors=["2"]).certainty == "possible"


# -- the card


def test_a_card_that_its_clients_fill(host: Host, running: FakeDaemon) -> None:
    for _ in range(35):
        join(host, running, held_mib=4070)
    host.nvml.loads[uuid(0)] = Load(H200_MIB - 200, 200, 0)
    found = find(host, "card-full", errors=["2"])
    assert found.certainty == "certain"
    assert "own-limit-reached" in names(host, errors=["2"])  # they are near it as well, and that is seen


def test_limits_that_add_up_to_more_than_the_card(host: Host, running: FakeDaemon) -> None:
    for _ in range(36):
        join(host, running, held_mib=3980)
    found = names(host, errors=["2"])
    assert {"limits-oversubscribed", "limit-is-per-process"} <= set(found)


def test_contexts_that_take_much_of_the_card(host: Host, running: FakeDaemon) -> None:
    for _ in range(47):
        join(host, running, held_mib=3000)
    found = find(host, "density-too-high", errors=["2"])
    assert f"47 contexts of 514 MiB are {47 * 514} of {H200_MIB} MiB" in found.evidence[0]


def test_ranks_of_which_one_holds_much_more(host: Host, running: FakeDaemon) -> None:
    for held_mib in (4070, 900, 900):
        join(host, running, held_mib=held_mib)
    assert names(host)[:2] == ["own-limit-reached", "uneven-ranks"]


def test_even_ranks_are_none(host: Host, running: FakeDaemon) -> None:
    for _ in range(3):
        join(host, running, held_mib=4070)
    assert names(host) == ["own-limit-reached"]


# -- frameworks


def test_a_framework_that_reckons_with_the_whole_card(host: Host, running: FakeDaemon) -> None:
    pid = host.process("python3", "vllm serve m --gpu-memory-utilization 0.45", variables(host))
    running.connect(SERVER, pid)
    hold(host, pid, 4000)
    found = find(host, "framework-cache", errors=["2"])
    assert "takes 0.45 of 143155 MiB, its limit of 4096 MiB leaves 3582 MiB beside a context" in found.evidence[0]
    assert "--gpu-memory-utilization 0.0243" in found.remedy


@pytest.mark.parametrize(("share", "told"), [("0.0243", False), ("0.0286", True)])
def test_a_framework_may_take_its_limit_less_its_context(
    host: Host, running: FakeDaemon, share: str, told: bool
) -> None:
    pid = host.process("python3", f"vllm serve m --gpu-memory-utilization {share}", variables(host))
    running.connect(SERVER, pid)
    hold(host, pid, 4000)
    found = [one for one in ask(host, errors=["2"]).diagnoses if one.name == "framework-cache"]
    found = [one for one in found if one.certainty == "likely"]
    assert bool(found) == told


# -- what NVML does not tell


def test_memory_that_is_not_told_hides_no_gpu_and_no_driver(host: Host, running: FakeDaemon) -> None:
    """A GPU that shares the memory of its CPU (GB10): NVML answers "Not Supported" for it."""
    host.nvml.all = [replace(h200(0, compute_mode="exclusive_process"), memory_mib=None)]
    host.nvml.loads[uuid(0)] = Load()
    pid = join(host, running, held_mib=LIMIT_MIB)
    for question in ({}, {"errors": ["2"]}, {"errors": ["100"]}, {"pids": [pid]}):
        answer = ask(host, **question)
        assert "no-driver" not in [one.name for one in answer.diagnoses if one.certainty != "possible"]
    assert "1 GPU" in ask(host).understood[0]
    assert "own-limit-reached" in names(host, pids=[pid])
