"""What is made from the parser and the table of exit codes: helps, the manual page, what shells complete."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path
from typing import Iterator, Mapping, Sequence

import pytest

from mpsctl.checks import verbs
from mpsctl.cli import completion, exit_codes, options
from mpsctl.model import errors
from shell import Shell

VERBS = list(options.VERBS)
FORMATS = ["shell", "systemd", "docker", "podman", "cdi", "compose", "quadlet", "json"]
CLI = Path(options.__file__).parent


# -- exit codes


def codes_in(text: str) -> list[str]:
    """The codes that a help lists."""
    listed = text.partition("exit codes:\n")[2]
    return re.findall(r"^  (\d+|128 \+ n|any other)  ", listed, re.MULTILINE)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("columns", ["50", "80", "200"])
def test_the_help_of_a_verb_lists_its_own_exit_codes_alone(
    mpsctl: Shell, monkeypatch: pytest.MonkeyPatch, verb: str, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert mpsctl(verb, "--help") == 0
    assert codes_in(mpsctl.out) == [one.code for one in exit_codes.of(verb)]
    assert "--json" in mpsctl.out
    assert max(map(len, mpsctl.out.partition("exit codes:")[2].splitlines())) <= int(columns) - 2


@pytest.mark.parametrize("verb", verbs.EXIT_CODES)
def test_what_a_judged_word_ends_with_stands_in_the_help(mpsctl: Shell, verb: str) -> None:
    mpsctl(verb, "--help")
    lines = " ".join(mpsctl.out.split())
    for word, code in verbs.EXIT_CODES[verb].items():
        assert re.search(rf" {code} the worst that was found is [a-z ]*\b{word}\b", lines), (word, code)


def test_the_help_of_the_program_lists_what_every_verb_can_end_with(mpsctl: Shell) -> None:
    assert mpsctl("--help") == 0
    assert re.findall(r"^  (\d+)  ", mpsctl.out, re.MULTILINE) == [one.code for one in exit_codes.every()]
    for verb in VERBS:
        assert {one.code for one in exit_codes.every()} <= {one.code for one in exit_codes.of(verb)}


def returned(verb: str) -> Iterator[int]:
    """The numbers and the errors' codes that the functions of a verb's module return, from the verb's own on."""
    module, _, name = options.VERBS[verb].runs.partition(".")
    tree = ast.parse((CLI / f"{module}.py").read_text())
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    values = {
        str(getattr(one.targets[0], "id", "")): one.value.value
        for one in tree.body
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant)
    }
    due, done = [name], set()
    while due:
        at = due.pop()
        if at in done or at not in functions:
            continue
        done.add(at)
        if at != name and ast.unparse(functions[at].returns or ast.Constant(None)) != "int":
            continue
        for node in ast.walk(functions[at]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                due.append(node.func.id)
            if isinstance(node, ast.Return) and node.value is not None:
                yield from _codes(node.value, values)


def _codes(value: ast.expr, values: Mapping[str, object]) -> Iterator[int]:
    if isinstance(value, ast.IfExp):
        yield from (*_codes(value.body, values), *_codes(value.orelse, values))
    elif isinstance(value, ast.Constant) and isinstance(value.value, int):
        yield value.value
    elif isinstance(value, ast.Name) and isinstance(values.get(value.id), int):
        yield int(str(values[value.id]))
    elif isinstance(value, ast.Attribute) and value.attr == "exit_code" and isinstance(value.value, ast.Name):
        kind = getattr(errors, value.value.id, None)
        if kind is not None:
            yield kind.exit_code


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_verb_returns_stands_in_its_table(verb: str) -> None:
    found = set(returned(verb))
    assert {code for code in found if not exit_codes.can_end_with(verb, code)} == set()


def test_the_reader_of_returns_finds_some() -> None:
    assert {1, 3, 4, 0} <= set(returned("clients"))
    assert set(returned("condition")) == {0, 77}
    assert set(returned("doctor")) == {0, 1}


# -- the manual page


def test_the_manual_page_names_every_verb_option_and_exit_code(mpsctl: Shell) -> None:
    assert mpsctl("man") == 0
    plain = mpsctl.out.replace("\\-", "-")
    for verb in VERBS:
        assert f'.SS "{verb}"' in plain
        for action in completion.actions_of(verb):
            for name in action.option_strings:
                assert name in ("-h", "--help", "--json") or rf"\fB{name}\fR" in plain, (verb, name)
        for code in exit_codes.of(verb):
            assert rf"\fB{code.code}\fR" in plain
    for variable in ("MPSCTL_TRACE", "NO_COLOR"):
        assert rf"\fB{variable}\fR" in plain
    page = mpsctl.out
    assert mpsctl.json("man")["man"] + "\n" == page


def test_no_line_of_the_manual_page_is_taken_for_a_command_that_is_none(mpsctl: Shell) -> None:
    mpsctl("man")
    known = (".TH ", ".SH ", ".SS ", ".TP", ".PP", ".B ", ".br")
    assert [line for line in mpsctl.out.splitlines() if line[:1] in (".", "'") and not line.startswith(known)] == []
    assert [line for line in mpsctl.out.splitlines() if not line.isascii()] == []


@pytest.mark.parametrize(
    "command",
    [["groff", "-man", "-ww", "-z", "-Tutf8"], ["mandoc", "-T", "lint", "-W", "warning"]],
    ids=["groff", "mandoc"],
)
def test_the_manual_page_is_read_without_a_warning(mpsctl: Shell, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    mpsctl("man")
    done = subprocess.run(command, input=mpsctl.out, capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "missing date" not in line]
    assert said == []


# -- completion


def completed(script: str, words: Sequence[str]) -> list[str]:
    """What bash offers for the last of these words."""
    asked = f"COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; _mpsctl"
    done = subprocess.run(
        ["bash", "--norc", "-c", f'{script}\n{asked}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def bash(mpsctl: Shell, root: Path) -> str:
    """The script, with the files of three instances and what is no instance's."""
    folder = root / "etc/mps"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("0.conf", "train-a.conf", "other.txt", "$(touch x).conf", ".half.conf"):
        (folder / name).write_text("")
    assert mpsctl("completion", "bash") == 0
    return mpsctl.out


def test_bash_completes_verbs_options_values_and_instances(bash: str) -> None:
    assert completed(bash, ["mpsctl", ""]) == [*VERBS, "--help", "--version"]
    assert completed(bash, ["mpsctl", "un"]) == ["undrain"]
    assert completed(bash, ["mpsctl", "status", ""]) == ["0", "train-a"]
    assert completed(bash, ["mpsctl", "run", "--instance", "t"]) == ["train-a"]
    assert completed(bash, ["mpsctl", "env", "0", "--format", ""]) == FORMATS
    assert completed(bash, ["mpsctl", "completion", "z"]) == ["zsh"]
    assert completed(bash, ["mpsctl", "drain", "--timeout", ""]) == []
    assert completed(bash, ["mpsctl", "nonsense", ""]) == []
    assert "--probe-client" in completed(bash, ["mpsctl", "verify", "--"])
    assert "--witness" not in completed(bash, ["mpsctl", "verify", "--"])


@pytest.mark.parametrize("verb", VERBS)
def test_bash_completes_every_option_of_every_verb(bash: str, verb: str) -> None:
    known = {name for action in completion.actions_of(verb) for name in action.option_strings}
    assert set(completed(bash, ["mpsctl", verb, "-"])) == known


def test_without_an_instance_bash_offers_none(mpsctl: Shell) -> None:
    mpsctl("completion", "bash")
    assert completed(mpsctl.out, ["mpsctl", "status", ""]) == []


def test_what_a_shell_reads_starts_no_program(mpsctl: Shell) -> None:
    """A key press costs no Python, no NVML and no systemd."""
    for shell in ("bash", "zsh"):
        mpsctl("completion", shell)
        code = [line for line in mpsctl.out.splitlines() if not line.startswith("#")]
        assert [line for line in code if re.search(r"\$\((?!compgen )|`|<\(", line)] == [], shell


def test_zsh_reads_its_script(mpsctl: Shell, root: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    (root / "etc/mps").mkdir(parents=True, exist_ok=True)
    (root / "etc/mps/train-a.conf").write_text("")
    assert mpsctl("completion", "zsh") == 0
    asked = """
    compdef() { :; }
    compadd() { shift; print -rl -- "$@"; }
    """
    for words, offered in (
        ("mpsctl ''", [*VERBS, "--help", "--version"]),
        ("mpsctl status ''", ["train-a"]),
        ("mpsctl env 0 --format ''", FORMATS),
    ):
        script = f"{asked}\n{mpsctl.out}\nwords=({words}); CURRENT=$#words; _mpsctl"
        done = subprocess.run(["zsh", "-fc", script], capture_output=True, text=True, check=False)
        assert (done.stdout.split(), done.stderr) == (offered, "")
