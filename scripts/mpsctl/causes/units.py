"""A systemd unit, a crontab or a shell script that runs MPS, by its text alone.

The forms are those of published guides, units and prologs; `systemd-analyze verify` finds hardly any of them.
"""

from __future__ import annotations

import re
import shlex
from typing import Iterator, Mapping

from mpsctl.adapters.hardware import CONTROL_DAEMON
from mpsctl.causes import environment
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose
from mpsctl.model.daemon_environment import PIPE_DIRECTORY
from mpsctl.model.pattern import Pattern

Sections = Mapping[str, list[tuple[str, str]]]
"""The assignments of a unit by its section, in their order: a key may come several times."""

_SECTION = Pattern(r"\[(\w+)\]\s*")
_ASSIGNMENT = Pattern(r"([A-Za-z][A-Za-z0-9]*)\s*=\s*(.*)")
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_SHELL_WORDS = Pattern(r"\||&&|\|\||;|[0-9]?>{1,2}.*|<{1,2}.*|\$\(.*|`.*")
_QUIT = ("quit", "-q", "-quit", "--quit")
_FLAGS = Pattern(r"-")
_COMMAND = Pattern(rf"(?:^|[\s;&|(]){CONTROL_DAEMON}(?=\s|$)|/{CONTROL_DAEMON}(?=\s|$)")
_COMPUTE_MODE = Pattern(r"nvidia-smi\b[^|;&]*?(?:\s-c\b|\s--compute-mode\b)[^|;&]*")
_ONE_GPU = Pattern(r"\s(?:-i|--id)\b")
_REBOOT = Pattern(r"^\s*@reboot\b")
_REMOVES = Pattern(r"\brm\s+-[a-zA-Z]*[rR][a-zA-Z]*\s+[^|;&]*mps")
_SUBSTRING = Pattern(r"\[\[\s+\$\{?\w*(?:CUDA_VISIBLE_DEVICES|CVD)\}?\s+==\s+\*\$\{?\w+\}?\*\s+\]\]")
_RESTARTS = Pattern(r"\bsystemctl\s+(?:\S+\s+)*restart\s+\S*mps")
_SETS = Pattern(r"set_(?:default_)?(?:device_pinned_mem_limit|active_thread_percentage|client_priority)")
_GETS = Pattern(r"get_(?:default_)?(?:device_pinned_mem_limit|active_thread_percentage|client_priority)|\bmpsctl\b")


def lint(text: str) -> list[Diagnosis]:
    """What is wrong with a unit; or, where the text has no section of one, with a crontab or a script."""
    text = re.sub(r"\\\n\s*", " ", text)
    sections = _parse(text)
    if sections:
        return _unit(sections)
    return _script(text)


def _parse(text: str) -> Sections:
    sections: dict[str, list[tuple[str, str]]] = {}
    entries: list[tuple[str, str]] = []
    for line in text.splitlines():
        section, assignment = _SECTION.fullmatch(line.strip()), _ASSIGNMENT.match(line.strip())
        if section and section[1] in ("Unit", "Service", "Install", "Timer", "Socket", "Path", "Mount"):
            entries = sections.setdefault(section[1], [])
        elif assignment and sections and not line.lstrip().startswith(("#", ";")):
            entries.append((assignment[1], assignment[2].strip()))
    return sections


def _values(sections: Sections, section: str, *keys: str) -> list[str]:
    return [value for key, value in sections.get(section, []) if key in keys]


def _words(sections: Sections, section: str, *keys: str) -> set[str]:
    return {word for value in _values(sections, section, *keys) for word in value.split()}


def _is_true(sections: Sections, key: str) -> bool:
    return bool({value.lower() for value in _values(sections, "Service", key)} & {"yes", "true", "on", "1"})


def _unit(sections: Sections) -> list[Diagnosis]:
    commands = [
        (key, value) for key, value in sections.get("Service", []) if key.startswith("Exec") and value.lstrip("-@:+!|")
    ]
    runs_daemon = any(key == "ExecStart" and CONTROL_DAEMON in value for key, value in commands)
    found = _ordering(sections)
    for key, value in commands:
        found += _exec(key, value, runs_daemon)
    if runs_daemon:
        found += _service(sections)
        found += _limits(commands)
    found += _environment(sections, runs_daemon)
    return found


def _ordering(sections: Sections) -> list[Diagnosis]:
    found = []
    after, wanted = _words(sections, "Unit", "After"), _words(sections, "Install", "WantedBy", "RequiredBy")
    if "graphical.target" in after and "multi-user.target" in wanted:
        found.append(diagnose("ordering-cycle", CERTAIN, "After=graphical.target", "WantedBy=multi-user.target"))
    for target in sorted(after & wanted):
        found.append(diagnose("ordering-cycle", CERTAIN, f"After={target}", f"WantedBy={target}"))
    if _words(sections, "Unit", "Requires", "BindsTo", "PartOf") & {"docker.service", "docker.socket", "docker"}:
        found.append(diagnose("depends-on-docker", CERTAIN, "Requires=docker.service"))
    if after & {"cron.service", "crond.service"}:
        found.append(diagnose("compute-mode-by-cron", LIKELY, "After=cron.service waits only for cron to be started"))
    return found


def _service(sections: Sections) -> list[Diagnosis]:
    found = []
    kind = (_values(sections, "Service", "Type") or ["simple"])[-1]
    if _is_true(sections, "RemainAfterExit"):
        found.append(diagnose("active-without-daemon", CERTAIN, f"Type={kind}", "RemainAfterExit=yes"))
    restart = (_values(sections, "Service", "Restart") or ["no"])[-1]
    if restart == "no":
        found.append(diagnose("no-restart", CERTAIN, "no Restart= in the unit"))
    elif restart != "always":
        # After a signal that systemd takes for a clean end (SIGTERM by hand), on-failure does nothing.
        found.append(diagnose("no-restart", POSSIBLE, f"Restart={restart}: not after an end that counts as clean"))
    return found


def _environment(sections: Sections, runs_daemon: bool) -> list[Diagnosis]:
    variables: dict[str, str] = {}
    for value in _values(sections, "Service", "Environment"):
        try:
            words = shlex.split(value)
        except ValueError:
            words = value.split()
        variables.update(word.partition("=")[::2] for word in words if "=" in word)
    found = environment.lint(variables, None, of_daemon=runs_daemon)
    told_elsewhere = _values(sections, "Service", "EnvironmentFile", "PassEnvironment")
    inline = any(PIPE_DIRECTORY in value for _, value in sections.get("Service", []))
    if runs_daemon and not told_elsewhere and not inline:
        found.append(diagnose("default-pipe-directory", LIKELY, f"no {PIPE_DIRECTORY} in the unit"))
    return found


def _exec(key: str, value: str, runs_daemon: bool) -> list[Diagnosis]:
    line = f"{key}={value}"
    prefix = re.match(r"[-@:+!|]*", value)
    command = value[prefix.end() :] if prefix else value
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    if not words:
        return []
    program = words[0].rpartition("/")[2]
    found = []
    if program in _SHELLS:
        script = next((word for before, word in zip(words, words[1:]) if re.fullmatch(r"-\w*c", before)), "")
        found += _in_shell(script, line)
        hidden = re.search(r"\|\|\s*(?:true|:)\s*$", script)
        if key.startswith("ExecStart") and hidden and CONTROL_DAEMON in script:
            found.append(diagnose("start-failure-hidden", LIKELY, line))
        return found
    if any(_SHELL_WORDS.fullmatch(word) for word in words[1:]):
        found.append(diagnose("pipeline-without-shell", CERTAIN, line))
    elif program == CONTROL_DAEMON:
        found += _arguments(words[1:], line)
    if key == "ExecStart" and runs_daemon and "-" in value[: prefix.end() if prefix else 0]:
        found.append(diagnose("start-failure-hidden", LIKELY, line))
    if _REMOVES.search(command):
        found.append(diagnose("pipe-directory-removed", LIKELY, line))
    return found + compute_mode(command, line)


def _arguments(words: list[str], line: str) -> list[Diagnosis]:
    """The words behind the control daemon's name."""
    if any(word in _QUIT for word in words[:1]):
        return [diagnose("quit-as-argument", CERTAIN, line)]
    if words and not words[0].startswith(("-", "<", ">", "|", "&", ";", "2>", "$", ")")):
        return [diagnose("command-as-argument", CERTAIN, line)]
    return []


def _in_shell(script: str, line: str) -> list[Diagnosis]:
    found = []
    for match in _COMMAND.finditer(script):
        rest = re.split(r"[|;&)\n]", script[match.end() :], maxsplit=1)[0]
        found += _arguments(rest.replace('"', " ").replace("'", " ").split(), line)
    if _REMOVES.search(script):
        found.append(diagnose("pipe-directory-removed", LIKELY, line))
    if _SUBSTRING.search(script):
        found.append(diagnose("substring-test", CERTAIN, line))
    if _RESTARTS.search(script):
        found.append(diagnose("restart-on-every-run", POSSIBLE, line))
    return found + compute_mode(script, line)


def sets_compute_mode(script: str) -> bool:
    """Whether a script or command line sets a compute mode."""
    return _COMPUTE_MODE.search(script) is not None


def compute_mode(script: str, line: str) -> list[Diagnosis]:
    """What is wrong with how a script sets compute modes."""
    every = [match[0] for match in _COMPUTE_MODE.finditer(script)]
    return [diagnose("compute-mode-of-all-gpus", LIKELY, line) for call in every if not _ONE_GPU.search(call)]


def _limits(commands: list[tuple[str, str]]) -> list[Diagnosis]:
    """Limits that are set at the start and not read back there."""
    started = [(key, value) for key, value in commands if key in ("ExecStart", "ExecStartPost")]
    sets = [f"{key}={value}" for key, value in started if _SETS.search(value)]
    if not sets or any(_GETS.search(value) for _, value in started):
        return []
    return [diagnose("defaults-without-read-back", LIKELY, *sets)]


def _script(text: str) -> list[Diagnosis]:
    found = []
    for line in _lines(text):
        if _REBOOT.match(line) and _COMPUTE_MODE.search(line):
            found.append(diagnose("compute-mode-by-cron", CERTAIN, line.strip()))
        found += _in_shell(line, line.strip())
        swallowed = re.search(r"\|\|\s*(?:true|:)\s*$", line)
        if swallowed and re.search(rf"systemctl\s.*start\s+\S*mps|{CONTROL_DAEMON}\s+-[df]\b", line):
            found.append(diagnose("start-failure-hidden", LIKELY, line.strip()))
        exported = re.search(r"\b(CUDA_MPS_\w+|CUDA_DEVICE_MAX_CONNECTIONS)=('[^']*'|\"[^\"]*\"|[^\s;&|]*)", line)
        if exported:
            value = exported[2]
            plain = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
            if plain and "$" not in plain:
                found += environment.lint({exported[1]: plain}, None)
    return found


def _lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
