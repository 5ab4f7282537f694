"""The live view: what a look becomes on a screen, of which size ever, and as JSON."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import Optional

import pytest

from fakes import Host, split_by_mig, uuid
from judging import SERVER, UNIT, connect, judge
from mpsctl.adapters import hardware
from mpsctl.checks.judgement import STATUS
from mpsctl.cli import output, top_frame, top_view
from mpsctl.cli.top_view import ClientRow, View
from mpsctl.model.gpu import Load
from shell import Shell

PLAIN = {"columns": None, "rows": None}


def view(host: Host) -> View:
    return top_view.of(judge(host, verb=STATUS))


def text(seen: View, columns: Optional[int] = None, rows: Optional[int] = None) -> list[str]:
    return ["".join(parts) for parts in top_frame.lines(seen, columns, rows)]


def row(lines: list[str], *head: str) -> dict[str, list[str]]:
    """The cells below a head, by the text of its first column or the second."""
    at = next(number for number, line in enumerate(lines) if line.split()[: len(head)] == list(head))
    return {line.split()[1]: line.split() for line in lines[at + 1 :] if line.split()}


class Screen(io.StringIO):
    """A terminal that takes what is written."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def drawn(seen: View, columns: int, rows: int) -> list[str]:
    """What stands on a screen of that size, without colours."""
    screen = Screen()
    output.show_screen(top_frame.lines(seen, columns, rows, "every 2 s, q ends"), screen, columns)
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", screen.getvalue()).split("\r\n")


# -- what a look becomes


def test_an_instance_is_a_row_with_its_word_clients_memory_and_limits(live: Host) -> None:
    live.nvml.loads[uuid(0)] = Load(12345, 131426, 37)
    lines = text(view(live))
    assert row(lines, "GPU", "INSTANCE")["0"][:9] == ["0", "0", "ok", "1", "0", "12345/143771", "4096M", "4096M", "50%"]
    assert "37%" in "\n".join(lines)
    assert "NVIDIA H200" in "\n".join(lines)


def test_gpus_without_an_instance_are_shown_too(live: Host) -> None:
    free = [line.split()[:6] for line in text(view(live)) if line.split()[1:2] == ["-"]]
    assert [cells[:5] for cells in free] == [[str(gpu), "-", "-", "-", "-"] for gpu in (1, 2, 3)]


def test_clients_come_by_their_memory_the_largest_first(live: Host) -> None:
    pids = [connect(live, live.running()) for _ in range(3)]
    assert live.nvml.held_mib is not None
    for pid, mib in zip(pids, (700, None, 9000)):
        live.nvml.held_mib[uuid(0)][pid] = mib
    seen = view(live)
    assert [one.memory_mib for one in seen.clients] == [9000, 700, 600, None]
    lines = text(seen)
    begin = next(number for number, line in enumerate(lines) if line.split()[:1] == ["PID"])
    assert [line.split()[3] for line in lines[begin + 1 :]] == ["9000", "700", "600", "?"]
    assert lines[begin + 1].split()[2:] == ["0", "9000", "NONE", "python3", "serve.py"]
    assert lines[begin + 1].split()[0] == str(pids[2])
    assert lines[begin + 2].split()[4] == "4096"


def test_what_is_not_told_is_a_question_mark_and_never_0(live: Host) -> None:
    live.nvml.held_mib = None
    live.nvml.all = [replace(gpu, memory_mib=None) for gpu in live.nvml.all]
    lines = text(view(live))
    assert row(lines, "GPU", "INSTANCE")["0"][5] == "?/?"
    assert next(line.split() for line in lines if line.split()[-1:] == ["serve.py"])[3] == "?"


def test_a_daemon_that_does_not_answer_has_an_unknown_number_of_clients(live: Host) -> None:
    live.running().unreachable = True
    cells = row(text(view(live)), "GPU", "INSTANCE")["0"]
    assert cells[2:5] == ["CRITICAL", "?", "0"]
    assert cells[6:8] == ["4G", "?"]


@pytest.mark.wording
def test_what_is_amiss_stands_below_with_its_check(live: Host) -> None:
    live.running().limits["0"] = 2 << 30
    seen = view(live)
    assert seen.instances[0].word != "ok"
    assert any(line.startswith("! 0: ") for line in text(seen))


def test_a_limit_that_does_not_hold_shows_what_the_daemon_says(live: Host) -> None:
    daemon = live.running()
    daemon.ask(["set_default_device_pinned_mem_limit 0 2G", "set_default_active_thread_percentage 100"])
    cells = row(text(view(live)), "GPU", "INSTANCE")["0"]
    assert cells[6:8] == ["4096M", "2G"]
    assert " ".join(cells).find("50%, is 100.0") > 0


def test_without_a_limit_there_is_a_dash(host: Host) -> None:
    host.desired()
    host.systemd.unit(UNIT).enabled = True
    host.start()
    assert row(text(view(host)), "GPU", "INSTANCE")["0"][6:9] == ["-", "-", "-"]


def test_a_driver_that_does_not_answer_is_said_in_its_place(live: Host) -> None:
    live.nvml.driver_up = False
    seen = view(live)
    assert any(line.startswith("? GPUs: ") for line in text(seen))
    assert seen.instances[0].clients == 1


def test_a_mig_device_is_told_from_its_gpu(host: Host) -> None:
    host.nvml.all = [split_by_mig(0)]
    mig = host.nvml.all[0].mig_devices[1]
    host.desired("a", GPUs=mig.uuid, PipeDirectory=f"{host.pipe_root}/a")
    lines = text(view(host))
    assert row(lines, "GPU", "INSTANCE")["a"][0] == "0m"
    assert len([line for line in lines if line.startswith(" 0m")]) == 2


@pytest.mark.wording
def test_simulated_gpus_are_named_as_such(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("imulated" in line for line in text(view(live)))
    monkeypatch.setattr(hardware, "simulated", lambda: True)
    assert any("imulated" in line for line in text(view(live)))


def test_a_host_without_an_instance_shows_its_gpus(host: Host) -> None:
    assert [line.split()[0] for line in text(view(host)) if line.split()[1:2] == ["-"]] == ["0", "1", "2", "3"]


# -- the screen


def crowd(seen: View, clients: int, waiting: int = 0, instances: int = 1) -> View:
    """A view with so much on it; commands are what others wrote."""
    client = seen.clients[0]
    commands = ("python3 \x1b[2J\x1b]0;x\x07\n", "漢字" * 60, "e\u0301" * 90, "\u202e" * 50, "x" * 900)
    rows = [replace(client, pid=4_000_000 + one, command=commands[one % 5], user="漢" * 40) for one in range(clients)]
    many = [replace(seen.instances[0], name=f"{'long-name' * 5}-{one}", amiss="a" * 300) for one in range(instances)]
    return replace(
        seen,
        clients=tuple(rows),
        instances=tuple(many),
        waiting=tuple(("0", f"pid {one} waits") for one in range(waiting)),
    )


def columns_of(line: str) -> int:
    return sum(map(output._width, line))


@pytest.mark.parametrize("rows", [1, 2, 5, 10, 24, 50, 200])
@pytest.mark.parametrize("columns", [1, 20, 79, 80, 110, 300])
def test_nothing_is_ever_longer_than_the_screen(live: Host, columns: int, rows: int) -> None:
    for seen in (view(live), crowd(view(live), 300, 50, 40), crowd(view(live), 0, 0, 0)):
        lines = drawn(seen, columns, rows)
        assert len(lines) <= rows
        assert max(map(columns_of, lines)) <= columns
        assert all(line.isprintable() for line in lines)


def test_what_there_is_no_room_for_is_counted(live: Host) -> None:
    shown = drawn(crowd(view(live), 300, 20, 30), 80, 40)
    assert len(shown) == 40
    assert len([line for line in shown if re.fullmatch(r"… and \d+ more", line)]) == 4
    clients = [line for line in shown if line.startswith("4000")]
    assert shown[-1] == f"… and {300 - len(clients)} more"
    assert len(clients) >= 5


def test_eighty_columns_show_a_usual_instance_whole(live: Host) -> None:
    seen = view(live)
    longest = max(len(line) for line in text(seen, 80, 24)[1:6])
    assert longest <= 80
    assert "THREADS" in drawn(seen, 80, 24)[1]
    assert "DEVICE" not in drawn(seen, 80, 24)[1]
    assert "DEVICE" in drawn(seen, 120, 24)[1]


def test_a_row_is_drawn_over_what_stood_there(live: Host) -> None:
    screen = Screen()
    output.show_screen([("one",), ("two",)], screen, 80)
    assert screen.getvalue() == "\x1b[H\x1b[Kone\r\n\x1b[Ktwo\x1b[J"


def test_an_encoding_without_the_sign_has_room_for_its_escape() -> None:
    screen = Screen()
    screen.encoding = "ascii"
    output.show_screen([("… and more",)], screen, 9)
    assert screen.getvalue() == "\x1b[H\x1b[K\\u2026 an\x1b[J"


# -- the verb


def test_without_a_terminal_one_look_is_told_as_text(mpsctl: Shell, live: Host) -> None:
    assert mpsctl("top") == 0
    assert "\x1b" not in mpsctl.out
    assert row(mpsctl.out.splitlines(), "GPU", "INSTANCE")["0"][2] == "ok"
    told = mpsctl.out
    assert mpsctl("top", "--once", "0") == 0
    assert mpsctl.out.splitlines()[1:] == told.splitlines()[1:]


def test_the_same_as_json(mpsctl: Shell, live: Host) -> None:
    assert mpsctl("top", "--json") == 0
    told = json.loads(mpsctl.out)
    assert (told["format"], told["worst"], told["simulated"]) == (2, "ok", False)
    (one,) = told["instances"]
    assert (one["name"], one["word"], one["clients"], one["places"]) == ("0", "ok", 1, None)
    assert one["devices"][0]["limit"] == {"desired": "4096 MiB", "in_force": "4096 MiB"}
    assert told["clients"][0]["memory_mib"] == 600
    assert set(told["clients"][0]) == set(ClientRow.__dataclass_fields__)


def test_the_words_are_those_of_status(mpsctl: Shell, live: Host) -> None:
    for broken in ("nothing", "the server", "the daemon"):
        if broken == "the server":
            live.kill(SERVER)
        elif broken == "the daemon":
            live.running().unreachable = True
        status = mpsctl.json("status")
        told = mpsctl.json("top")
        assert told["worst"] == status["worst"]
        assert told["word_of_host"] == status["host"]["word"]
        assert {one["name"]: one["word"] for one in told["instances"]} == {
            name: one["word"] for name, one in status["instances"].items()
        }


@pytest.mark.parametrize(
    "words", [["7"], ["--interval", "0"], ["--interval", "0.1"], ["--interval", "x"], ["--interval", "-1"], ["--quick"]]
)
def test_what_makes_no_sense_is_refused(mpsctl: Shell, live: Host, words: list[str]) -> None:
    assert mpsctl("top", *words) == 2
    assert mpsctl.err.count("\n") == 1
