"""The verb completion: what a shell needs to complete this program's words, made from the parser.

The shell itself lists the instances, by their files: a key press starts no program. Nothing of it is installed: a shell
reads it from this program, which knows its own options.
"""

from __future__ import annotations

import argparse
import shlex
from typing import Iterator, NamedTuple, Sequence

from mpsctl.cli import options as command_line
from mpsctl.cli import output
from mpsctl.store.world import World

_FILES = ("FILE", "DIR", "PATH")
_INSTANCES = ("INSTANCE", "I")
"""By what a value is called in the help."""


def completion(world: World, options: argparse.Namespace) -> int:
    """Print the script for a shell."""
    script = (_bash if options.shell == "bash" else _zsh)(str(world.places.configuration))
    if options.json:
        output.say_json({"shell": options.shell, "script": script})
    else:
        output.say_lines(script)
    return 0


class _Words(NamedTuple):
    """What a verb takes: its options, those with one of a few values, those with a file or with an instance, those with
    another value, and what stands alone."""

    options: list[str]
    choices: dict[str, Sequence[str]]
    files: list[str]
    instances: list[str]
    others: list[str]
    alone: Sequence[str]
    instance_alone: bool


def words_of(verb: str) -> _Words:
    """What a verb takes, by its parser."""
    found = _Words([], {}, [], [], [], [], False)
    for action in actions_of(verb):
        if not action.option_strings:
            if action.choices:
                found = found._replace(alone=[str(one) for one in action.choices])
            elif action.metavar in _INSTANCES:
                found = found._replace(instance_alone=True)
            continue
        found.options.extend(action.option_strings)
        long = action.option_strings[-1]
        if action.choices:
            found.choices[long] = [str(one) for one in action.choices]
        elif action.metavar in _FILES:
            found.files.append(long)
        elif action.metavar in _INSTANCES:
            found.instances.append(long)
        elif action.nargs != 0:
            found.others.append(long)
    return found


def actions_of(verb: str) -> Iterator[argparse.Action]:
    """What the parser of a verb knows, but for former names."""
    (verbs,) = [one for one in command_line.parser(verb)._actions if isinstance(one, argparse._SubParsersAction)]
    return (one for one in verbs.choices[verb]._actions if one.help is not argparse.SUPPRESS)


def _bash(folder: str) -> str:
    lines = [
        "# bash completion of mpsctl: source <(mpsctl completion bash)",
        "_mpsctl() {",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} options= alone= file name",
        "  local instances=",
        f"  for file in {shlex.quote(folder)}/*.conf; do",
        "    name=${file##*/}; name=${name%.conf}",
        '    [[ $name == [A-Za-z0-9]* && $name != *[!A-Za-z0-9._-]* ]] && instances+=" $name"',
        "  done",
        "  COMPREPLY=()",
        "  if ((COMP_CWORD == 1)); then",
        f"    COMPREPLY=($(compgen -W '{' '.join([*command_line.VERBS, '--help', '--version'])}' -- \"$word\"))",
        "    return",
        "  fi",
        "  case ${COMP_WORDS[1]} in",
    ]
    for verb in command_line.VERBS:
        lines += _case_of(verb, words_of(verb))
    lines += [
        "  *) return ;;",
        "  esac",
        "  if [[ $word == -* ]]; then alone=$options; fi",
        '  COMPREPLY=($(compgen -W "$alone" -- "$word"))',
        "}",
        "complete -F _mpsctl mpsctl",
    ]
    return "\n".join(lines)


def _case_of(verb: str, takes: _Words) -> list[str]:
    lines = [f"  {verb})"]
    branches = [f"    {name}) alone='{' '.join(values)}' ;;" for name, values in takes.choices.items()]
    if takes.files:
        branches.append(f'    {"|".join(takes.files)}) COMPREPLY=($(compgen -f -- "$word")); return ;;')
    if takes.instances:
        branches.append(f"    {'|'.join(takes.instances)}) alone=$instances ;;")
    if takes.others:
        branches.append(f"    {'|'.join(takes.others)}) return ;;")
    alone = "$instances" if takes.instance_alone else f"'{' '.join(takes.alone)}'"
    lines += [f"    options='{' '.join(takes.options)}'"]
    return [*lines, "    case $before in", *branches, f"    *) alone={alone} ;;", "    esac ;;"]


def _zsh(folder: str) -> str:
    lines = [
        "#compdef mpsctl",
        "# zsh completion of mpsctl: source <(mpsctl completion zsh)",
        "_mpsctl() {",
        "  local word=$words[CURRENT] before=$words[CURRENT-1] file",
        "  local -a instances options alone",
        f"  for file in {shlex.quote(folder)}/*.conf(N:t:r); do",
        "    [[ $file == [A-Za-z0-9]* && $file != *[^A-Za-z0-9._-]* ]] && instances+=($file)",
        "  done",
        "  if ((CURRENT == 2)); then",
        f"    compadd -- {' '.join([*command_line.VERBS, '--help', '--version'])}",
        "    return",
        "  fi",
        "  case $words[2] in",
    ]
    for verb in command_line.VERBS:
        lines += _zsh_case_of(verb, words_of(verb))
    lines += [
        "  *) return 1 ;;",
        "  esac",
        "  if [[ $word == -* ]]; then compadd -- $options; else compadd -- $alone; fi",
        "}",
        # An autoloaded file is the function itself; one that is sourced only defines it.
        'if [[ $funcstack[1] == _mpsctl ]]; then _mpsctl "$@"; else compdef _mpsctl mpsctl; fi',
    ]
    return "\n".join(lines)


def _zsh_case_of(verb: str, takes: _Words) -> list[str]:
    branches = [f"    {name}) alone=({' '.join(values)}) ;;" for name, values in takes.choices.items()]
    if takes.files:
        branches.append(f"    {'|'.join(takes.files)}) _files; return ;;")
    if takes.instances:
        branches.append(f"    {'|'.join(takes.instances)}) alone=($instances) ;;")
    if takes.others:
        branches.append(f"    {'|'.join(takes.others)}) return 1 ;;")
    alone = "$instances" if takes.instance_alone else " ".join(takes.alone)
    return [
        f"  {verb})",
        f"    options=({' '.join(takes.options)})",
        "    case $before in",
        *branches,
        f"    *) alone=({alone}) ;;",
        "    esac ;;",
    ]
