"""Where the lab cannot run, or is asked for what it cannot do, it says so in one line and changes nothing."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from mpslab import bundle, cgroups, cli, hosts, machine, processes
from mpslab.errors import LabError
from mpslab.places import Places


@pytest.fixture(autouse=True)
def lab_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPS_LAB_DIR", str(tmp_path / "lab"))
    return tmp_path / "lab"


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("verb", [("up",), ("down",), ("roots",), ("gpu", "lab-01", "vanish", "0")])
def test_without_root(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lab_directory: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "found user id 1000, the lab needs root" in refusal(capsys, *verb)
    assert not lab_directory.exists()


def test_on_another_architecture(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "found Linux on riscv64" in refusal(capsys, "up")


def test_missing_packages_are_named_as_apt_knows_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool, **_: None if tool in ("systemd-nspawn", "gcc") else tool)
    line = refusal(capsys, "up")
    assert "apt-get install" in line
    assert {"systemd-container", "gcc", "libc6-dev"} <= set(line.replace(";", "").split())


@pytest.mark.parametrize(
    ("code", "words"),
    [(3, "not permitted"), (4, "overlay mounts do not work"), (5, "cgroup2"), (1, "namespaces do not work")],
)
def test_where_mounts_do_not_work(code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise LabError(f"unshare ended with {code}: no message")

    monkeypatch.setattr(machine, "missing_packages", list)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(processes, "run", fail)
    with pytest.raises(LabError, match=words):
        machine.check(Places(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hosts", "0"), "--hosts 0, expected 1 to 240"),
        (("--gpus", "17"), "--gpus 17, expected 0 to 16"),
        (("--prefix", "Lab_1"), "--prefix Lab_1"),
        (("--mig", "9g"), "MIG profile 9g"),
        (("--driver-delay", "-1"), "delay of -1 s"),
        (("--share", "/usr"), "--share without --gpu real"),
        (("--gpu", "real", "--gpus", "2"), "--gpu real with --gpus"),
        (("--gpu", "real", "--gpus", "0"), "--gpu real with --gpus"),
        (("--gpu", "real", "--model", "h200"), "--gpu real with --model"),
        (("--gpu", "real", "--mig", "3g.40gb"), "--gpu real with --mig"),
        (("--gpu", "real", "--daemon", "550"), "--gpu real with --daemon"),
        (("--gpu", "real", "--no-daemon"), "--gpu real with --no-daemon"),
        (("--gpu", "real", "--standin-server"), "--gpu real with --standin-server"),
        (("--gpu", "real", "--disk", "64"), "--gpu real with --disk"),
        (("--disk", "0"), "--disk 0, expected 16 to 4096"),
        (("--disk", "4097"), "--disk 4097, expected 16 to 4096"),
        (("--no-daemon", "--standin-server"), "--standin-server with --no-daemon"),
        (("--gpu", "real", "--driver-delay", "0"), "--gpu real with --driver-delay"),
        (("--gpu", "real", "--share", "/nowhere"), "--share /nowhere, expected an existing folder"),
        (("--gpu", "real", "--hosts", "0"), "--hosts 0, expected 1 to 240"),
    ],
)
def test_fleets_that_cannot_be(
    arguments: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "check", lambda _, **__: None)
    assert words in refusal(capsys, "up", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("vanish",), "vanish without an index"), (("reorder", "0"), "reorder with a GPU index")],
)
def test_a_fault_of_one_gpu_names_it_and_one_of_all_names_none(
    arguments: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    lab_directory: Path,
) -> None:
    monkeypatch.setattr(machine, "check", lambda _, **__: None)
    made = hosts.Host("lab-01", "127.77.0.11", 22, "bookworm", "550.1", "550.1", 2, "h200", (), ())
    (lab_directory / "hosts/lab-01").mkdir(parents=True)
    (lab_directory / "hosts/lab-01/host.json").write_text(json.dumps(asdict(made)))
    assert words in refusal(capsys, "gpu", "lab-01", *arguments)


@pytest.mark.parametrize(
    "verb",
    [
        ("gpu", "lab-01", "vanish", "0"),
        ("gpu", "lab-01", "reorder"),
        ("driver", "lab-01", "--delay", "3"),
        ("driver", "lab-01", "--absent"),
        ("driver", "lab-01", "--hanging"),
        ("driver", "lab-01", "--well"),
    ],
)
def test_no_fault_is_planted_in_a_real_gpu(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lab_directory: Path
) -> None:
    monkeypatch.setattr(machine, "check", lambda _, **__: None)
    made = hosts.Host("lab-01", "127.77.0.11", 22, "bookworm", None, "580.65.06", 1, "", (), (), hosts.REAL_GPU)
    (lab_directory / "hosts/lab-01").mkdir(parents=True)
    (lab_directory / "hosts/lab-01/host.json").write_text(json.dumps(asdict(made)))
    assert "found lab-01 with this machine's own GPU" in refusal(capsys, *verb)


@pytest.mark.parametrize("missing", [(), ("mmdebstrap",), ("systemd-nspawn",), ("mmdebstrap", "systemd-nspawn")])
@pytest.mark.parametrize("there", [True, False], ids=["a bundle there", "no bundle there"])
@pytest.mark.parametrize("named", [None, "bundle", "nothing"])
def test_where_the_parts_of_a_real_host_come_from(
    missing: tuple[str, ...],
    there: bool,
    named: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bundle that is named; else a root built here; else the project's bundle; else a refusal."""
    monkeypatch.setattr(machine, "_KEYRING", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda tool, **_: None if tool in missing else tool)
    (tmp_path / "bundle").touch()
    usual = tmp_path / "usual"
    monkeypatch.setattr(bundle, "_DEFAULT", usual)
    monkeypatch.delenv("MPS_LAB_BUNDLE", raising=False)
    if there:
        usual.touch()
    if named:
        monkeypatch.setenv("MPS_LAB_BUNDLE", str(tmp_path / named))
    if named == "nothing":
        with pytest.raises(LabError, match=r"found no file .*/nothing \(MPS_LAB_BUNDLE\)"):
            bundle.wanted()
    elif named:
        assert bundle.wanted() == tmp_path / named
    elif not missing:
        assert bundle.wanted() is None
    elif there:
        assert bundle.wanted() == usual
    else:
        with pytest.raises(LabError, match=r"found no .*/usual and not installed: .*make gpu-bundle"):
            bundle.wanted()


def test_hosts_that_other_sources_of_the_lab_made_can_be_read(lab_directory: Path) -> None:
    made = hosts.Host("lab-01", "127.77.0.11", 22, "bookworm", "550.1", "550.1", 2, "h200", (), ("/a", "/b"))
    folder = lab_directory / "hosts/lab-01"
    folder.mkdir(parents=True)
    entry = asdict(made)
    newer = ("gpu", "shares", "nspawn", "standin_server", "disk_mib")
    older = {name: value for name, value in entry.items() if name not in newer}
    for text in (entry, older, {**entry, "colour": "green"}):
        (folder / "host.json").write_text(json.dumps(text))
        assert hosts.load(Places(lab_directory)) == [made]


@pytest.mark.parametrize("shares", [(), (("/", "/machine"), ("/usr", "/srv/usr"))])
def test_a_real_host_is_read_as_it_was_made(shares: tuple[tuple[str, str], ...], lab_directory: Path) -> None:
    made = hosts.Host("a-01", "127.77.0.11", 22, "bookworm", None, "", 1, "", (), ("/r",), hosts.REAL_GPU, shares, "/n")
    (lab_directory / "hosts/a-01").mkdir(parents=True)
    (lab_directory / "hosts/a-01/host.json").write_text(json.dumps(asdict(made)))
    assert hosts.load(Places(lab_directory)) == [made]


def test_a_host_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "found host name lab-07, the lab has no host" in refusal(capsys, "ssh", "lab-07", "true")


def test_a_directory_that_overlay_options_cannot_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPS_LAB_DIR", "/tmp/a:b")
    assert "MPS_LAB_DIR" in refusal(capsys, "list")


def test_an_empty_lab_lists_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_process_with_a_reused_id_is_not_ours(tmp_path: Path) -> None:
    processes.record(tmp_path / "ours")
    assert processes.recorded(tmp_path / "ours") == os.getpid()
    entry = json.loads((tmp_path / "ours").read_text())
    (tmp_path / "other").write_text(json.dumps({**entry, "start_time_ticks": entry["start_time_ticks"] + 1}))
    assert processes.recorded(tmp_path / "other") is None
    assert processes.recorded(tmp_path / "absent") is None


def test_cgroup2_is_found_under_either_layout() -> None:
    old = "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    assert cgroups.hierarchy(old) == Path("/sys/fs/cgroup/unified")
    assert cgroups.hierarchy("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n") == Path("/sys/fs/cgroup")
    assert cgroups.hierarchy(old + "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n") == Path("/sys/fs/cgroup")
    assert cgroups.hierarchy("proc /proc proc rw 0 0\n") is None
