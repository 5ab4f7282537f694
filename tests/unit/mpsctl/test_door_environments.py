"""Clients that would drop their limit by a variable of their own: refused at the door where that is chosen."""

from __future__ import annotations

import subprocess
import sys
from typing import Iterator

import pytest

from door import ALICE, BOB, Door
from mpsctl.adapters import procfs
from mpsctl.front_door.judge import Refuse, Visitor
from mpsctl.store.admission import OPEN, Admission

VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
DEVICES = ("GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222")
WAITS, REFUSED = "environment", "refused: limit-bypass"
BEGIN_TO_READ = procfs.begin_environment
"""Of a real process."""


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch, door: Door) -> dict[int, subprocess.Popen[bytes]]:
    """Processes that read the fakes' environments; of a pid in ``slow`` one that hangs."""
    begun: dict[int, subprocess.Popen[bytes]] = {}

    def begin(pid: int) -> subprocess.Popen[bytes]:
        variables = door.host.processes[pid].environment
        text = "import time; time.sleep(600)"
        if variables is not None and "SLOW" not in variables:
            raw = b"".join(f"{key}={value}\0".encode() for key, value in variables.items())
            text = f"import sys; sys.stdout.buffer.write({raw!r})"
        begun[pid] = subprocess.Popen(
            [sys.executable, "-IS", "-c", text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        return begun[pid]

    monkeypatch.setattr(procfs, "begin_environment", begin)
    return begun


@pytest.fixture(autouse=True)
def none_is_left(readers: dict[int, subprocess.Popen[bytes]]) -> Iterator[None]:
    yield
    for reader in readers.values():
        reader.kill()
        reader.wait()


def judged(door: Door) -> None:
    door.say(Admission(OPEN, "", door.served, multi_user=True, judged_devices=DEVICES))


def comes(door: Door, environment: dict[str, str], uid: int = ALICE) -> Visitor:
    pid = door.host.process("python3", "python3 serve.py", environment, uid)
    return door.visitor(uid, pid=pid)


def read(door: Door, readers: dict[int, subprocess.Popen[bytes]], visitor: Visitor) -> str:
    """What becomes of a visitor whose environment was read."""
    door.ask(visitor)
    readers[visitor.pid].wait()
    return door.word(visitor)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1G", REFUSED),
        ("0=1G,1=1G,2=1G", REFUSED),
        ("0=1T", REFUSED),
        ("GPU-3=1G", REFUSED),
        ("", REFUSED),
        ("0=1G,1=512M", "let-in"),
        (f"{DEVICES[1]}=1G", "let-in"),
        (None, "let-in"),
    ],
)
def test_a_variable_that_drops_every_limit(
    door: Door, readers: dict[int, subprocess.Popen[bytes]], value: str, expected: str
) -> None:
    judged(door)
    variables = {} if value is None else {VARIABLE: value}
    assert read(door, readers, comes(door, variables)) == expected


def test_the_refusal_names_the_entry_and_what_to_do(door: Door, readers: dict[int, subprocess.Popen[bytes]]) -> None:
    judged(door)
    one = comes(door, {VARIABLE: "0=1G,5=1G", "CUDA_VISIBLE_DEVICES": "0"})
    read(door, readers, one)
    verdict = door.settled(one)
    assert isinstance(verdict, Refuse)
    assert verdict.text == (
        f"it would work without a limit: its {VARIABLE} has '5=1G', which names a GPU that it cannot see; correct or"
        " unset it"
    )


def test_nothing_is_read_where_that_is_not_chosen(door: Door, readers: dict[int, subprocess.Popen[bytes]]) -> None:
    assert door.word(comes(door, {VARIABLE: "1G"})) == "let-in"
    assert readers == {}


def test_who_cannot_be_read_in_a_second_comes_in(door: Door, readers: dict[int, subprocess.Popen[bytes]]) -> None:
    judged(door)
    slow = comes(door, {"SLOW": "yes", VARIABLE: "1G"})
    assert door.word(slow, within_s=0.5) == WAITS
    assert door.word(slow, within_s=2) == "let-in"
    assert readers[slow.pid].wait() != 0, "its reader was ended"


def test_a_user_who_is_slow_to_read_holds_up_nobody_else(
    door: Door, readers: dict[int, subprocess.Popen[bytes]]
) -> None:
    judged(door)
    slow = [comes(door, {"SLOW": "yes"}) for _ in range(20)]
    for one in slow:
        assert door.judge.judge(one).__class__.__name__ == "Wait"
    assert len(readers) == 4
    assert read(door, readers, comes(door, {}, BOB)) == "let-in"


def test_who_leaves_leaves_no_reader(door: Door, readers: dict[int, subprocess.Popen[bytes]]) -> None:
    judged(door)
    slow = comes(door, {"SLOW": "yes"})
    door.ask(slow)
    door.judge.gave_up(slow, 0)
    assert readers[slow.pid].wait() != 0


def test_a_process_of_this_host_is_read() -> None:
    """For real: also one whose environment is larger than a pipe."""
    much = {VARIABLE: "0=1G", "MUCH": "x" * 100_000}
    with subprocess.Popen([sys.executable, "-IS", "-c", "input()"], env=much, stdin=subprocess.PIPE) as process:
        reader = BEGIN_TO_READ(process.pid)
        assert reader.wait() == 0
        found = procfs.read_environment(reader)
        assert found == much
        process.communicate(b"\n")
    gone = BEGIN_TO_READ(process.pid)
    gone.wait()
    assert procfs.read_environment(gone) is None
