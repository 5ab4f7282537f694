"""Carries the desired state to a host and has mpsctl reconcile it there: one round trip, one process.

The sidecar ../modules/mps_host.py holds the documentation.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Optional

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin_utils"))

from mps_role import (
    ansible_values,
    deferred,
    packages,
    progress,
    report,
    request,
    rollout,
    summary,
    transport,
    variables,
)

from mpsctl.converge import statement  # isort: skip


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("phase", "program", "build", "program_absent", "atomic", "probe_client"))

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _, arguments = self.validate_argument_spec(
            {
                "phase": {"type": "str", "required": True, "choices": ["look", "converge", "remove", "verify"]},
                "program": {"type": "path", "required": True},
                "build": {"type": "str", "required": True},
                "program_absent": {"type": "bool", "default": False},
                "atomic": {"type": "bool", "default": False},
                "probe_client": {"type": "bool", "default": False},
            }
        )
        check_mode = bool(self._task.check_mode)
        check = check_mode or arguments["phase"] == "look"
        if arguments["phase"] == "verify":
            program = ansible_values.plain(self._templar.template(task_vars["_mps_program"]))
            return {**result, **self._verify(arguments, program, task_vars)}
        read = ansible_values.of(task_vars, self._templar.template, self._given(task_vars))
        values = read.values
        # mps_validate has seen the inventory's variables; those of a play or of a task are seen here alone.
        refusals = [*read.problems, *variables.unknown(task_vars), *variables.problems(values)]
        if refusals:
            lines = variables.together({task_vars["inventory_hostname"]: refusals})
            refusal = _refusal("\n".join(lines), "; ".join(refusals))
            return {**result, **refusal, "bad_variables": True, "warnings": read.warnings}
        places = {name: ansible_values.plain(self._templar.template(task_vars[name])) for name in request.PLACES}
        desired = (
            request.removal(values, arguments["build"])
            if arguments["phase"] == "remove"
            else request.request(values, places, arguments["build"], arguments["atomic"])
        )
        with self._told_meanwhile(arguments["phase"], check, task_vars):
            answer, sent = self._ask(json.dumps(desired), places["_mps_program"], arguments, check, task_vars)
        if arguments["atomic"]:  # a package is installed by site.yml alone
            values["mps_package"] = False
        result.update(self._reading(answer, values, arguments, check_mode, task_vars["inventory_hostname"]))
        result["program_sent"] = sent
        result["warnings"] = [*read.warnings, *result.get("warnings", ())]
        if arguments["atomic"] and not check and result.get("failed"):
            batch, going_on = task_vars["ansible_play_batch"], task_vars["ansible_play_hosts"]
            every = [host for host in task_vars["ansible_play_hosts_all"] if host in batch or host in going_on]
            result["msg"] = rollout.stopped(str(result["msg"]), every, batch)
        return result

    def _given(self, task_vars: dict[str, Any]) -> set[str]:
        """The names that an inventory, a play, a task or a call sets: all but what is the role's default alone."""
        of_host = task_vars["hostvars"][task_vars["inventory_hostname"]]
        return {*of_host, *self._task.get_vars(), *self._task.play.get_vars()}

    def _told_meanwhile(self, phase: str, check: bool, task_vars: dict[str, Any]) -> AbstractContextManager[None]:
        """Who is waited for, as the look found them: the program tells who is left when it has ended."""
        look = ansible_values.plain(self._templar.template(task_vars.get("__mps_look") or {}))
        drains = [step for step in look.get("steps") or () if step.get("kind") == "drain"]
        if check or phase != "converge" or not drains:
            return nullcontext()
        host = str(task_vars["inventory_hostname"])
        left = {str(step["instance"]): step["clients"] for step in drains}
        place = progress.folder(constants.DEFAULT_LOCAL_TMP)
        return progress.told_meanwhile(place, Display().display, host, progress.CLIENTS, left)

    def _ask(
        self, desired: str, installed: str, arguments: dict[str, Any], check: bool, task_vars: dict[str, Any]
    ) -> tuple[dict[str, Any], bool]:
        """The answer of the installed program, or of ours where the host has none, or another; and whether sent."""
        python = self._python(task_vars)
        words = transport.reconcile(check)
        if not arguments["program_absent"]:
            done = self._run_there(transport.command(installed, python, words), desired.encode())
            answer = transport.answer(done["stdout"])
            if answer is not None and not answer.get("program_differs"):
                return answer, False
            if answer is None and transport.is_final(done["rc"]):
                raise AnsibleActionFail(transport.no_answer(done, python))
        answer = self._send(desired, arguments["program"], python, words)
        if answer.get("program_differs"):
            raise AnsibleActionFail(
                f"found build {answer.get('build')} in {arguments['program']}, expected {arguments['build']};"
                " run the playbook again"
            )
        return answer, True

    def _send(self, desired: str, program_file: str, python: list[str], words: list[str]) -> dict[str, Any]:
        """The answer of our own program, which travels with the request."""
        program = Path(program_file).read_bytes()
        temporary = str(self.get_shell_option("remote_tmp", default="~/.ansible/tmp"))
        command = transport.bootstrap_command(len(program), temporary, python, words)
        done = self._run_there(command, program + desired.encode())
        answer = transport.answer(done["stdout"])
        if answer is None:
            raise AnsibleActionFail(transport.no_answer(done, python))
        return answer

    def _verify(self, arguments: dict[str, Any], installed: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        """What `mpsctl verify` finds, by the installed program, or by ours where there is none that knows the verb."""
        words = ["verify", "--json", *(["--probe-client"] if arguments["probe_client"] else [])]
        python = self._python(task_vars)
        answer = transport.answer(self._run_there(transport.command(installed, python, words), b"\n")["stdout"])
        carried = answer is None or answer.get("format") != report.ANSWER_FORMAT or "instances" not in answer
        if answer is None or carried:
            answer = self._send("", arguments["program"], python, words)
        failing = report.failing({"verified": answer})
        return {"changed": False, "verified": answer, "failing": failing, "program_installed": not carried}

    def _run_there(self, command: str, data: bytes) -> dict[str, Any]:
        environment = self._compute_environment_string()
        prefix = f"export {environment}; " if environment else ""
        try:
            done: dict[str, Any] = self._low_level_execute_command(prefix + command, in_data=data)
        except BaseException as error:
            if not transport.is_timeout(error):
                raise
            raise AnsibleActionFail(transport.not_in_time(self._task.timeout)) from None
        return done

    def _python(self, task_vars: dict[str, Any]) -> list[str]:
        """The interpreter that was set, by variable or in ansible.cfg; else the distribution's."""
        found = constants.config.get_config_value("INTERPRETER_PYTHON", variables=task_vars)
        try:
            return transport.python_words(str(ansible_values.plain(self._templar.template(found))))
        except Exception as error:  # templates of users may fail in any way
            said = " ".join(str(error).split())
            raise AnsibleActionFail(
                f"ansible_python_interpreter: found {found!s}, expected the path of a Python; {said}"
            ) from None

    def _reading(
        self, answer: dict[str, Any], values: dict[str, Any], arguments: dict[str, Any], check_mode: bool, host: str
    ) -> dict[str, Any]:
        """The task's result out of the program's answer."""
        look = arguments["phase"] == "look"
        missing: dict[str, str] = answer.get("missing") or {}
        wanted = values["mps_package"]
        described = dict(answer.get("host") or {})
        to_install = bool(missing and look and wanted)
        actions = list(answer.get("actions") or ())
        if to_install:
            actions.insert(0, f"install the package of {missing['what']}")
        needed = to_install or bool(answer.get("changed") and not missing)
        steps = answer.get("steps") or []
        statements = summary.of_steps(steps) if answer.get("changed") else []
        if to_install:
            package = statement.Statement(statement.PACKAGE_INSTALLED, name=missing["what"])
            statements = [package.as_json(), *statements]
        part = summary.LOOK if look else summary.CHANGE
        told = {summary.KEY: summary.told(part, check_mode, statements, needed)}
        # In check mode it is not known yet who would still be there after a drain.
        drains = [step for step in steps if step["kind"] == "drain"] if check_mode else []
        waiting = [
            deferred.line(entry, values["mps_on_clients"], values["mps_drain_timeout_s"], look or check_mode)
            for entry in (*(answer.get("pending") or ()), *drains)
        ]
        told_later = bool(waiting) and not check_mode and not arguments["atomic"]  # tasks/deferred.yml, with an error
        reading: dict[str, Any] = {
            "changed": needed and (check_mode or not look),
            "needed": needed or (look and told_later),
            "refused": None,
            "missing": missing or None,
            "actions": actions,
            "steps": steps,
            "pending": answer.get("pending") or [],
            "waiting": waiting,
            "instances": _in_short(answer.get("instances") or {}),
            "host": described,
            "package": wanted if to_install and isinstance(wanted, str) else None,
            "package_vars": packages.vars_file(described) if to_install else None,
            **told,
        }
        if check_mode or not look:
            reading["diff"] = answer.get("diff") or []
        if check_mode or not (look and reading["needed"]):  # else converge says it
            reading["warnings"] = [*(answer.get("warnings") or ()), *([] if told_later else waiting)]
        refused = answer.get("refused") or (packages.refusal(described, wanted) if to_install else None)
        if refused:
            reading.pop("needed")
            reading.update(_refusal(f"{host}: {refused}", refused))
            reading[summary.KEY] = summary.told(part, check_mode, ())
        problem = answer.get("error") or (missing["message"] if missing and not to_install else None)
        if problem:  # the line that matters, and what was done before it
            put_back = {"put_back": answer["put_back"]} if answer.get("put_back") is not None else {}
            done = {"changed": reading["changed"], "actions": actions, **put_back, **told}
            return {"failed": True, "msg": problem, **done}
        return reading


def _refusal(told: str, refused: str) -> dict[str, Any]:
    """The result for a host that refuses, or whose variables do: it fails alone, and nothing was changed there.

    ``told`` names the host, ``refused`` does not.
    """
    return {"failed": True, "msg": told, "refused": refused, "changed": False}


def _in_short(instances: dict[str, Any]) -> dict[str, Any]:
    """Of each instance its word and what is not ok: a fleet's facts would fill the controller's memory."""
    return {
        name: {"word": one["word"], "checks": [check for check in one["checks"] if check["level"] != "ok"]}
        for name, one in instances.items()
    }
