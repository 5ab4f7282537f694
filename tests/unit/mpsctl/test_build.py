"""The one file: the same bytes everywhere, run by every supported Python, with bytecode that only root could write."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Callable

import pytest

pytestmark = pytest.mark.sentenceless

PROJECT = Path(__file__).resolve().parents[3]
BUILDER = PROJECT / "scripts" / "build_mpsctl.py"
CACHE = "/var/cache/mps-fleet"


def builder() -> Any:
    """scripts/build_mpsctl.py as a module of its own, so that a test may change it."""
    spec = importlib.util.spec_from_file_location("build_mpsctl", BUILDER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def interpreters() -> dict[str, str]:
    """Every Python from 3.9 on that this machine has, by its version; the running one at least."""
    found = {".".join(map(str, sys.version_info[:2])): sys.executable}
    for minor in range(9, 20):
        candidates = [str(path) for path in Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}")]
        on_path = shutil.which(f"python3.{minor}")
        if on_path and "/shims/" not in on_path:  # a shim may lead to nothing
            candidates.append(on_path)
        for candidate in candidates[:1]:
            found.setdefault(f"3.{minor}", candidate)
    return dict(sorted(found.items(), key=lambda entry: int(entry[0][2:])))


PYTHONS = interpreters()


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    return PYTHONS[request.param]


def run(python: str, program: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As the shebang does: isolated, and without site-packages."""
    return subprocess.run(
        [python, "-IS", str(program), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", **environment},
    )


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / "mpsctl"
    builder().build(path)
    return path


# -- the same bytes


def test_two_builds_are_the_same_to_the_byte(program: Path, tmp_path: Path) -> None:
    builder().build(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == program.read_bytes()


def test_folder_umask_and_time_zone_make_no_difference(program: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(BUILDER.parent / "mpsctl", copy / "mpsctl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(BUILDER, copy)
    for path in copy.rglob("*.py"):
        path.chmod(0o600)
        os.utime(path, (1, 1))
    subprocess.run(
        [sys.executable, copy / "build_mpsctl.py", "out/mpsctl"],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7"},
        umask=0o077,
        stdout=subprocess.DEVNULL,
    )
    built = tmp_path / "out" / "mpsctl"
    assert built.read_bytes() == program.read_bytes()
    assert built.stat().st_mode & 0o7777 == 0o755


def test_the_builds_id_changes_with_every_source(program: Path, tmp_path: Path) -> None:
    module = builder()
    first, _ = module.contents()
    copy = tmp_path / "mpsctl"
    shutil.copytree(BUILDER.parent / "mpsctl", copy)
    with (copy / "model" / "gpu.py").open("a") as file:
        file.write("# another line\n")
    module.SOURCES = copy
    second, _ = module.contents()
    assert first != second
    assert re.fullmatch("[0-9a-f]{16}", first)


def test_a_build_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "mpsctl"
    builder().build(path)
    before = path.stat()
    builder().build(path)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [path]


def test_the_builder_prints_the_id_that_the_program_tells(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BUILDER, tmp_path / "mpsctl"], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    told = json.loads(run(sys.executable, tmp_path / "mpsctl", "version", "--json").stdout)
    assert told["build"] == done.stdout.strip()


@pytest.mark.parametrize("words", [[], ["a", "b"], ["--output"]])
def test_the_builder_refuses_another_command_line(words: list[str]) -> None:
    done = subprocess.run([sys.executable, BUILDER, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage: build_mpsctl.py OUTPUT" in done.stderr


def test_the_file_holds_the_program_pynvml_and_its_licence_and_nothing_else(program: Path) -> None:
    names = set(zipfile.ZipFile(program).namelist())
    assert {"__main__.py", "pynvml.py", "mpsctl/cli/main.py"} < names
    others = {name for name in names if not name.startswith("mpsctl/")} - {"__main__.py", "pynvml.py"}
    assert all(name.startswith("nvidia-ml-py.") for name in others)
    assert b"Redistributions of source code must retain" in zipfile.ZipFile(program).read("pynvml.py")
    assert not any("pycache" in name or name.endswith("__main__.py") for name in names - {"__main__.py"})


# -- every Python


def test_it_starts_on_its_own(program: Path) -> None:
    assert program.read_bytes().startswith(b"#!/usr/bin/python3 -IS\n")
    assert os.access(program, os.X_OK)


def test_it_runs_on_every_python_with_nothing_installed(program: Path, python: str) -> None:
    done = run(python, program, "version", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert python.rpartition("python")[2] in ("", "3") or told["python"].startswith(python.rpartition("python")[2])


def test_every_verbs_help_works_on_every_python(program: Path, python: str) -> None:
    for verb in ("status", "gpus", "env", "apply", "reconcile"):
        done = run(python, program, verb, "--help")
        assert (done.returncode, done.stderr) == (0, "")


def test_every_module_compiles_and_imports_on_every_python(program: Path, python: str) -> None:
    names = sorted(
        name[:-3].replace("/", ".").removesuffix(".__init__")
        for name in zipfile.ZipFile(program).namelist()
        if name.endswith(".py") and name != "__main__.py"
    )
    script = f"import sys; sys.path.insert(0, {str(program)!r})\nfor name in {names!r}: __import__(name)"
    done = subprocess.run(
        [python, "-IS", "-W", "error", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has a driver")
def test_a_host_without_a_driver_gets_one_line_and_3(program: Path, python: str) -> None:
    done = run(python, program, "gpus")
    assert done.returncode == 3
    assert re.fullmatch(r"mpsctl gpus: NVML does not answer: .*; load the NVIDIA driver .*\n", done.stderr)


def test_nothing_of_the_callers_environment_gets_in(program: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "pynvml.py").write_text("raise SystemExit('the wrong pynvml')")
    done = run(sys.executable, program, "version", "--json", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0


# -- the bytecode


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's bytecode is kept and believed")


class Installed:
    """The one file on a host of its own, with its cache below that."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.program = root / "usr/local/bin/mpsctl"
        self.cache = root / "var/cache/mps-fleet"
        module = builder()
        assert module._MAIN.count(CACHE) == 1
        module._MAIN = module._MAIN.replace(CACHE, str(self.cache))
        self.id = module.build(self.program)

    def keep(self, python: str = sys.executable) -> None:
        script = (
            f"import sys; sys.path.insert(0, {str(self.program)!r})\n"
            "from pathlib import Path\nfrom mpsctl.adapters import bytecode\nfrom mpsctl.model.places import Places\n"
            f"bytecode.keep(Places(Path({str(self.root)!r})))"
        )
        done = subprocess.run([python, "-IS", "-c", script], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")

    def kept(self) -> Path:
        (found,) = self.cache.glob("mpsctl-*.zip")
        return found

    def uses_it(self, python: str = sys.executable) -> bool:
        """Whether the program is imported from the cache."""
        done = subprocess.run(
            [python, "-ISv", str(self.program), "version"], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("mpsctl ")
        return "/proc/self/fd/" in done.stderr  # it is held open while the program runs


@pytest.fixture
def installed(root: Path) -> Installed:
    return Installed(root)


@needs_root
def test_bytecode_is_kept_per_build_and_python_and_then_used(installed: Installed, python: str) -> None:
    assert not installed.uses_it(python)
    installed.keep(python)
    assert installed.kept().name.startswith(f"mpsctl-{installed.id}-cpython-3")
    assert installed.kept().stat().st_mode & 0o7777 == 0o644
    assert installed.cache.stat().st_mode & 0o7777 == 0o755
    assert installed.uses_it(python)


@needs_root
def test_bytecode_that_a_removal_takes_away_meanwhile_is_imported_all_the_same(
    installed: Installed, python: str
) -> None:
    installed.keep(python)
    with zipfile.ZipFile(installed.program) as program:
        start, _, _ = program.read("__main__.py").decode().partition("from mpsctl.cli.main import run")
    late = f"import mpsctl, shutil; shutil.rmtree({str(installed.cache)!r}); import mpsctl.observe.host; print('late')"
    done = subprocess.run([python, "-IS", "-c", start + late], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("late\n", "")


@needs_root
@pytest.mark.parametrize("kept", [False, True])
def test_what_is_handed_to_another_python_can_be_read_as_text(installed: Installed, kept: bool) -> None:
    if kept:
        installed.keep()
    place = installed.kept() if kept else installed.program
    read = f"import sys, pkgutil; sys.path.insert(0, {str(place)!r}); sys.path.insert(1, {str(installed.program)!r})\n"
    read += "sys.stdout.buffer.write(pkgutil.get_data('mpsctl.adapters', 'rank.py'))"
    done = subprocess.run([sys.executable, "-IS", "-c", read], capture_output=True, check=True)
    assert done.stdout == (BUILDER.parent / "mpsctl/adapters/rank.py").read_bytes()


def test_kept_bytecode_is_not_made_again(installed: Installed) -> None:
    installed.keep()
    before = installed.kept().stat().st_mtime_ns
    installed.keep()
    assert installed.kept().stat().st_mtime_ns == before


@needs_root
def test_bytecode_of_other_builds_is_removed(installed: Installed) -> None:
    installed.cache.mkdir(parents=True)
    (installed.cache / "mpsctl-0123456789abcdef-cpython-311.zip").write_text("old")
    (installed.cache / "something-else.zip").write_text("kept")
    installed.keep()
    assert {path.name for path in installed.cache.iterdir()} == {installed.kept().name, "something-else.zip"}


@needs_root
@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_bytecode_that_others_could_have_written_is_not_believed(installed: Installed, mode: int) -> None:
    installed.keep()
    installed.kept().chmod(mode)
    assert not installed.uses_it()


@needs_root
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_bytecode_in_a_folder_that_others_can_write_is_not_believed(installed: Installed, mode: int) -> None:
    installed.keep()
    installed.cache.chmod(mode)
    assert not installed.uses_it()


@needs_root
@pytest.mark.parametrize("which", ["file", "folder"])
def test_bytecode_of_another_user_is_not_believed(installed: Installed, which: str) -> None:
    installed.keep()
    os.chown(installed.kept() if which == "file" else installed.cache, 65534, 65534)
    assert not installed.uses_it()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100_000])


def _overwritten(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1000:400_000] = bytes(399_000)
    path.write_bytes(data)


def _one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o644)


def _a_link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


@needs_root
@pytest.mark.parametrize(
    "damage", [_cut, _overwritten, _one_bit, _emptied, _a_folder, _a_fifo, _a_link_to_nothing], ids=lambda d: d.__name__
)
def test_bytecode_that_is_damaged_is_not_believed_and_made_again(
    installed: Installed, damage: Callable[[Path], None]
) -> None:
    installed.keep()
    kept = installed.kept()
    damage(kept)
    assert not installed.uses_it()
    installed.keep()
    assert installed.uses_it() == (not kept.is_dir()), "the program works without it"


@needs_root
def test_bytecode_that_is_not_believed_is_made_again(installed: Installed) -> None:
    installed.keep()
    os.chown(installed.kept(), 65534, 65534)
    installed.keep()
    assert installed.kept().stat().st_uid == 0
    assert installed.uses_it()


@needs_root
def test_another_build_than_the_installed_one_keeps_nothing(installed: Installed) -> None:
    with installed.program.open("rb") as file:
        data = file.read()
    elsewhere = installed.root / "elsewhere" / "mpsctl"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(data)
    installed.program.write_bytes(data.replace(installed.id.encode(), b"0123456789abcdef"))
    other, installed.program = installed.program, elsewhere
    installed.keep()
    assert not installed.cache.exists()
    assert other.exists()


@needs_root
@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut short"])
def test_bytecode_that_is_broken_does_not_stop_the_program(installed: Installed, content: bytes) -> None:
    installed.keep()
    installed.kept().write_bytes(content)
    installed.uses_it()


def test_a_cache_that_cannot_be_written_does_not_stop_the_program(installed: Installed) -> None:
    installed.cache.parent.mkdir(parents=True)
    installed.cache.write_text("in the way")
    installed.keep()
    assert not installed.uses_it()
