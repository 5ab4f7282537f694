"""Running one client: its environment, the proof that it became one, and that it is as if nothing stood between."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import Host, h200, uuid
from mpsctl.adapters import procfs
from mpsctl.lifecycle import run as lifecycle
from mpsctl.lifecycle.run import Request
from mpsctl.model import client_variable, run_environment
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.gpu import Device
from mpsctl.model.instance import Instance
from mpsctl.model.quantity import parse
from mpsctl.model.run_environment import Lower
from mpsctl.observe import reachability
from mpsctl.observe.client_watch import Watch

_REAL = {name: getattr(procfs, name) for name in ("alive", "started_at", "name", "title", "environment", "pids")}
INSTANCE = Instance("0", ("0", "1"), "/run/nvidia-mps/0", limit=parse("4G"), thread_percentage=50.0)
DEVICES = (Device(h200(0)), Device(h200(1)))
UUIDS = tuple(device.uuid for device in DEVICES)

names = st.one_of(
    st.sampled_from(
        [
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            "CUDA_MPS_PIPE_DIRECTORY",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            "CUDA_MPS_CLIENT_PRIORITY",
            "CUDA_MPS_LOG_DIRECTORY",
            "CUDA_MPS_PROTOCOL_VERSION",
            "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
            "CUDA_MPS_SM_PARTITION",
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "PATH",
        ]
    ),
    st.from_regex(r"[A-Z_]{1,12}", fullmatch=True),
)
values = st.one_of(st.sampled_from(["0=1G,1=1G", "1=1G", "1G", "0", "3", "", "/tmp/nvidia-mps"]), st.text(max_size=9))


# -- the environment


@given(
    inherited=st.dictionaries(names, values, max_size=8),
    devices=st.integers(1, 4),
    memory=st.one_of(
        st.none(),
        st.builds(lambda n: f"{n}M", st.integers(1, 9000)),
        st.builds(lambda n: f"{n}G", st.integers(1, 9)),
        st.builds(lambda n: f"{n / 10:.1f}%", st.integers(1, 1000)),
    ),
    threads=st.one_of(st.none(), st.integers(1, 1000).map(lambda tenths: tenths / 10)),
    priority=st.sampled_from([None, 0, 1]),
    limit=st.sampled_from([None, "512M", "4G", "3%"]),
    percentage=st.sampled_from([None, 12.5, 50.0]),
    own_priority=st.sampled_from([None, 0, 1]),
)
def test_no_environment_ever_lifts_a_limit_or_leads_past_mps(
    inherited: dict[str, str],
    devices: int,
    memory: Optional[str],
    threads: Optional[float],
    priority: Optional[int],
    limit: Optional[str],
    percentage: Optional[float],
    own_priority: Optional[int],
) -> None:
    served = tuple(Device(h200(index)) for index in range(devices))
    instance = Instance(
        "0",
        ("0",),
        "/run/nvidia-mps/0",
        limit=None if limit is None else parse(limit),
        thread_percentage=percentage,
        client_priority=own_priority,
    )
    lower = Lower(None if memory is None else parse(memory), threads, priority)
    try:
        found = run_environment.build(inherited, instance, served, lower)
    except BadValue:
        most_mib = served[0].memory_mib if instance.limit is None else instance.limit.on(served[0].memory_mib)
        assert most_mib is not None
        assert (
            (lower.memory is not None and lower.memory.on(served[0].memory_mib) > most_mib)
            or (threads is not None and threads > (percentage or 100))
            or (priority == 0 and own_priority == 1)
        )
        return
    uuids = tuple(device.uuid for device in served)
    variables = found.variables
    assert client_variable.limit_bypass(variables, uuids) is None
    assert variables["CUDA_MPS_PIPE_DIRECTORY"] == "/run/nvidia-mps/0"
    assert variables["CUDA_VISIBLE_DEVICES"] == ",".join(uuids)
    if memory is None:
        assert client_variable.VARIABLE not in variables
    else:
        entries = variables[client_variable.VARIABLE].split(",")
        assert len(entries) == devices
        for ordinal, entry in enumerate(entries):
            assert re.fullmatch(rf"{ordinal}=[1-9][0-9]*M", entry)
            if instance.limit is not None:
                assert int(entry[2:-1]) <= instance.limit.on(served[0].memory_mib)
    harmless = {"CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "CUDA_MPS_SM_PARTITION"}
    brought = {key for key in variables if key.startswith("CUDA_MPS_")} - set(found.given)
    assert brought <= harmless & set(inherited)
    for key, value in inherited.items():
        if not key.startswith("CUDA_MPS_") and key != "CUDA_VISIBLE_DEVICES":
            assert variables[key] == value


@pytest.mark.parametrize(
    ("lower", "says"),
    [
        (Lower(memory=parse("5G")), "--memory 5G (5120 MiB), expected at most the 4096 MiB on GPU 0"),
        (Lower(memory=parse("4097M")), "at most the 4096 MiB"),
        (Lower(thread_percentage=50.1), "--threads 50.1 %, expected at most the 50 %"),
    ],
)
def test_values_above_the_instances_are_refused(lower: Lower, says: str) -> None:
    with pytest.raises(BadValue) as refused:
        run_environment.build({}, INSTANCE, DEVICES, lower)
    assert says in str(refused.value)


def test_what_is_given_and_what_is_not_passed_on() -> None:
    inherited = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "9=1G",
        "CUDA_VISIBLE_DEVICES": "3",
        "CUDA_DEVICE_MAX_CONNECTIONS": "8",
    }
    found = run_environment.build(inherited, INSTANCE, DEVICES, Lower(parse("1G"), 25.0, 1))
    assert found.given == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps/0",
        "CUDA_VISIBLE_DEVICES": ",".join(UUIDS),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M,1=1024M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_CLIENT_PRIORITY": "1",
    }
    assert found.dropped == ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_VISIBLE_DEVICES"]
    assert found.warnings == ["CUDA_DEVICE_MAX_CONNECTIONS=8: above 2 it lowers the number of possible clients"]  # B18


# -- a command in the foreground


@pytest.fixture
def live(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """An instance that lets clients in, on a host whose /proc is the real one."""
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50)
    host.start()
    (host.pipe_root / "0/control").touch()  # through the front door: the daemon's socket
    for name, function in _REAL.items():
        monkeypatch.setattr(procfs, name, function)
    return host


def run(host: Host, *command: str, **more: object) -> int:
    request = Request("0", command, **more)  # type: ignore[arg-type]
    return lifecycle.run(host.world, request, {"PATH": os.environ["PATH"]})


def report(host: Host, *command: str, **more: object) -> tuple[int, dict[str, object]]:
    path = host.places.root / "report.json"
    code = run(host, *command, report=path, **more)
    return code, json.loads(path.read_text())


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -USR1 $$", 138)],
)
def test_the_exit_code_is_the_commands(live: Host, script: str, code: int) -> None:
    assert run(live, "sh", "-c", script) == code


def test_a_command_that_cannot_be_started(live: Host, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(live, "no-such-command", require_mps=True) == 127
    (live.places.root / "text").write_text("x")
    assert run(live, str(live.places.root / "text")) == 126
    assert "no-such-command: command not found" in capfd.readouterr().err


def test_the_command_has_our_input_and_output_and_the_environment(
    live: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "env | grep CUDA | sort"
    assert run(live, "sh", "-c", script, lower=Lower(parse("1G"), 25.0)) == 0
    assert capfd.readouterr().out.splitlines() == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M",
        f"CUDA_MPS_PIPE_DIRECTORY={live.pipe_root}/0",
        f"CUDA_VISIBLE_DEVICES={uuid(0)}",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on_and_the_command_decides(live: Host, number: signal.Signals) -> None:
    flag = live.places.root / "ready"
    # A shell cannot trap what it was started with ignored, as background jobs are with SIGINT.
    script = (
        "import pathlib, signal, sys, time; signal.signal(int(sys.argv[1]), lambda *_: sys.exit(42));"
        " pathlib.Path(sys.argv[2]).touch(); time.sleep(60)"
    )

    # It waits until the command is there, for the process as a whole takes the signal.
    with sent_when_there(number, flag):
        assert run(live, sys.executable, "-c", script, str(int(number)), str(flag)) == 42
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_command_that_dies_of_a_signal_ends_as_in_a_shell(live: Host) -> None:
    flag = live.places.root / "ready"
    with sent_when_there(signal.SIGTERM, flag):
        assert run(live, "sh", "-c", f"touch {flag}; exec sleep 600") == 143


@contextmanager
def sent_when_there(number: signal.Signals, flag: Path) -> Iterator[None]:
    """A signal for this process as soon as the command has made its flag."""

    def send() -> None:
        while not flag.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [number])  # as the main thread will: none else may take it
    sender.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    yield
    sender.join()


# -- an end that spares the neighbours


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_its_clients_are_taken_off_before_a_signal_that_ends_them(
    evicting: Host, number: signal.Signals, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is ended in its kernel takes its neighbours along (H200, driver 580)."""
    script, there = client_that_tells_of_signals(evicting)
    become_client(evicting, probe="the daemon")
    when_said(monkeypatch, "is an MPS client", lambda: os.kill(os.getpid(), number))
    daemon = evicting.running()
    assert run(evicting, sys.executable, "-c", script, str(there), str(int(number)), evict=True) == 42
    assert daemon.terminated == [int(there.read_text())]
    assert "was taken off the GPU by the daemon of 0" in capfd.readouterr().err


def test_without_being_asked_to_it_takes_nobody_off(evicting: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    script, there = client_that_tells_of_signals(evicting)
    become_client(evicting, probe="the daemon")
    when_said(monkeypatch, "is an MPS client", lambda: os.kill(os.getpid(), signal.SIGTERM))
    daemon = evicting.running()
    assert run(evicting, sys.executable, "-c", script, str(there), str(int(signal.SIGTERM))) == 42
    assert daemon.terminated == []


def test_what_the_daemon_does_not_take_off_is_said_and_ended_all_the_same(
    evicting: Host, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, there = client_that_tells_of_signals(evicting)
    become_client(evicting, probe="the daemon")
    evicting.running().answer_to_terminate = "1"
    when_said(monkeypatch, "is an MPS client", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(evicting, sys.executable, "-c", script, str(there), str(int(signal.SIGTERM)), evict=True) == 42
    assert "is still a client of 0: its end may end others' work" in capfd.readouterr().err


def test_only_root_can_have_clients_taken_off(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    flag = live.places.root / "started"
    with pytest.raises(NotReady, match="for root alone"):
        run(live, "touch", str(flag), evict=True)
    assert not flag.exists()


@pytest.fixture
def evicting(live: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The fake daemon counts as a process that lives."""
    main = int(live.world.systemd.show(["mps-control@0.service"])["mps-control@0.service"]["MainPID"])
    monkeypatch.setattr(procfs, "alive", lambda pid: pid == main or _REAL["alive"](pid))
    return live


def client_that_tells_of_signals(host: Host) -> tuple[str, Path]:
    """A program that ends with 42 on the signal that it is told, and the file in which its pid stands."""
    script = (
        "import os, pathlib, signal, sys; signal.signal(int(sys.argv[2]), lambda *_: sys.exit(42));"
        " there = pathlib.Path(sys.argv[1]); new = there.with_suffix('.partial');"
        " new.write_text(str(os.getpid())); new.rename(there); signal.pause()"
    )
    return script, host.places.root / "descendant"


# -- the proof


def become_client(host: Host, probe: str = "NVML", when: Optional[threading.Event] = None) -> None:
    """The process that ``until_proven`` starts last becomes a client, by one of the lists, once ``when`` is."""

    def act() -> None:
        if when is not None:
            when.wait()
        there = host.places.root / "descendant"
        while not there.exists():  # on a busy machine the command takes its time to start
            time.sleep(0.01)
        pid = int(there.read_text())
        if probe == "NVML":
            host.nvml.clients_mib = {pid: 514}
        elif probe == "the daemon":
            host.running().start_server(9001, [pid])

    threading.Thread(target=act, daemon=True).start()


def until(flag: Path) -> str:
    """A line of shell that waits for a flag."""
    return f"while [ ! -e {flag} ]; do sleep 0.05; done"


def until_proven(host: Host, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A command with a child of its own that ends with 3 as soon as it was proven to be a client."""
    flag = host.places.root / "proven"
    when_said(monkeypatch, "is an MPS client", flag.touch)
    there = host.places.root / "descendant"
    script = f"echo $$ >{there}.partial; mv {there}.partial {there}; {until(flag)}; exit 3"
    return ("sh", "-c", f"sh -c '{script}'; exit $?")


def when_said(monkeypatch: pytest.MonkeyPatch, words: str, act: Callable[[], None]) -> None:
    """Do something as soon as a line with these words was said."""
    really = lifecycle._say

    def say(request: Request, report: lifecycle.Report, text: str) -> None:
        really(request, report, text)
        if words in text:
            act()

    monkeypatch.setattr(lifecycle, "_say", say)


@pytest.mark.parametrize("probe", ["NVML", "the daemon"])
def test_a_client_is_proven_by_nvml_or_by_the_daemon(
    live: Host, probe: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = until_proven(live, monkeypatch)
    become_client(live, probe)
    code, found = report(live, *command, require_mps=True)
    assert code == 3
    assert (found["became_client"], found["seen_by"], found["why_not"]) == (True, probe, None)
    assert found["client_pid"] != found["pid"]  # a descendant counts
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.fullmatch(rf"mpsctl run: pid \d+, started by pid \d+, is an MPS client \(seen by {probe}\)", lines[0])


def test_a_short_client_is_found_in_the_journal(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    flag = live.places.root / "looked"
    real = procfs.tree

    def tree(root: int) -> list[int]:
        seen.add(root)
        flag.touch()
        return real(root)

    monkeypatch.setattr(procfs, "tree", tree)
    line = "[2026-11-29 10:00:00.000 Server 9001] Received new client request NEW CLIENT {} from user 0: Server"
    monkeypatch.setattr(live.systemd, "journal", lambda unit, lines: [line.format(pid) for pid in seen])
    code, found = report(live, "sh", "-c", until(flag), require_mps=True)
    assert (code, found["seen_by"]) == (0, "the journal")


def test_what_never_opened_cuda_is_told_so(live: Host, capfd: pytest.CaptureFixture[str]) -> None:
    code, found = report(live, "true")
    assert code == 0
    assert found["became_client"] is False
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        "mpsctl run: ended (exit code 0) and never seen as an MPS client: neither it nor what it started was seen to"
        " open CUDA (libcuda)"
    ]
    code, found = report(live, "true", require_mps=True)
    assert (code, found["exit_code"]) == (4, 4)


def test_after_the_time_for_the_proof_it_is_told_and_still_looked_for(
    live: Host, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = until_proven(live, monkeypatch)
    told = threading.Event()
    when_said(monkeypatch, "not an MPS client after", told.set)
    become_client(live, when=told)
    assert run(live, *command, prove_timeout_s=0.3, require_mps=True) == 3
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("mpsctl run: not an MPS client after 0.3 s: ")
    assert "is an MPS client (seen by NVML)" in second


_OPENS_CUDA = """\
import mmap, os, sys, time
file = open(sys.argv[1], "r+b")
mapped = mmap.mmap(file.fileno(), 0)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
"""


@pytest.fixture
def opened_cuda(live: Host, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A command that maps a file of libcuda's name, and ends when that was seen."""
    library, flag = live.places.root / "libcuda.so.1", live.places.root / "seen"
    library.write_bytes(b"x" * 4096)
    really = Watch.look

    def look(watch: Watch, nvml: Any, ask_daemon: bool) -> bool:
        found = really(watch, nvml, ask_daemon)
        if watch.opened_cuda:
            flag.touch()
        return found

    monkeypatch.setattr(Watch, "look", look)

    def command() -> list[str]:
        flag.unlink(missing_ok=True)  # of the one before
        return [sys.executable, "-c", _OPENS_CUDA, str(library), str(flag)]

    return command


def test_why_not_no_door(live: Host, opened_cuda: Callable[[], list[str]]) -> None:
    (live.pipe_root / "0/control").unlink()
    _, found = report(live, *opened_cuda())
    assert "there is no front door" in str(found["why_not"])
    assert "outside MPS" in str(found["why_not"])


def test_why_not_its_own_variables(live: Host, opened_cuda: Callable[[], list[str]]) -> None:
    _, found = report(live, "env", "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", *opened_cuda())
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps instead of" in str(found["why_not"])
    _, found = report(live, "env", "CUDA_VISIBLE_DEVICES=GPU-00", *opened_cuda())
    assert found["became_client"] is False
    _, found = report(live, "env", "CUDA_VISIBLE_DEVICES=7", *opened_cuda())
    assert "names no GPU of this instance" in str(found["why_not"])


def test_why_not_a_directory_that_may_not_be_entered(
    live: Host, opened_cuda: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "myself", lambda: reachability.User(31001))
    (live.pipe_root / "0").chmod(0o700)
    _, found = report(live, *opened_cuda())
    assert "on the way to the pipe directory, may not be entered by user 31001 (mode 0700" in str(found["why_not"])


def test_why_not_when_cuda_was_opened_and_nobody_lists_it(live: Host, opened_cuda: Callable[[], list[str]]) -> None:
    _, found = report(live, *opened_cuda())
    assert "it opened CUDA and no list of clients has it" in str(found["why_not"])


# -- what is refused before anything is started


@pytest.mark.parametrize(
    ("lower", "says"),
    [
        (Lower(parse("5G")), "at most the 4096 MiB"),
        (Lower(parse("271M")), "at least 272 MiB"),
        (Lower(None, 60.0), "50 %"),
    ],
)
def test_nothing_is_started_that_could_not_work(live: Host, lower: Lower, says: str) -> None:
    flag = live.places.root / "started"
    with pytest.raises(BadValue, match=re.escape(says)):
        run(live, "touch", str(flag), lower=lower)
    assert not flag.exists()


def test_a_daemon_that_still_serves_another_gpu(live: Host) -> None:
    live.desired(GPUs="1", DeviceMemoryLimit="4G")
    with pytest.raises(BadValue, match=f"a daemon that serves {uuid(0)}"):
        run(live, "true")
    environment = live.places.runtime("0") / "daemon.env"
    environment.unlink()  # not there, or not to be read: the file of the instance is believed
    assert run(live, "true") == 0


@pytest.mark.parametrize("name", ["nonexistent/report", "link"])
def test_a_report_that_cannot_be_written_is_refused_before(live: Host, tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(BadValue, match="--report"):
        run(live, "true", report=tmp_path / name)


def test_where_nvml_goes_away_the_daemon_tells(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    command = until_proven(live, monkeypatch)
    become_client(live, "the daemon")
    calls = []
    world = live.world

    def once():  # type: ignore[no-untyped-def]
        calls.append(1)
        live.nvml.driver_up = len(calls) == 1
        return live.nvml.opened()

    path = live.places.root / "report.json"
    request = Request("0", command, report=path, quiet=True)
    assert lifecycle.run(replace(world, nvml=once), request, dict(os.environ)) == 3
    assert json.loads(path.read_text())["seen_by"] == "the daemon"


# -- B05: control commands are no arguments of the front-end


def test_no_source_of_ours_hands_a_command_to_the_front_end_as_an_argument() -> None:
    """Up to driver 550 it would be ignored without a word."""
    scripts = Path(run_environment.__file__).parents[1]
    pattern = re.compile(r"(?:nvidia-cuda-mps-control|CONTROL_DAEMON\)?\)?,)\s+[\"']?(?:set|get|start|quit|shutdown)_?")
    for source in scripts.rglob("*.py"):
        assert not pattern.search(source.read_text()), source
