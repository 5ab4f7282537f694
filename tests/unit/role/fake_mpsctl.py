#!/usr/bin/python3 -IS
"""A stand-in for mpsctl on a "host" that is a folder: it answers the request of the role and keeps its state there.

The folder is the one that FAKE_HOST names. In it lie ``state.json`` (what was converged last), ``behaviour.json`` (what
a test wants the answer to be) and ``calls`` (what was asked).
"""

import json
import os
import pathlib
import shutil
import sys

BUILD = "fake-build"


def main() -> int:
    program = pathlib.Path(sys.argv[0])
    place = pathlib.Path(os.environ["FAKE_HOST"])
    check = "--check" in sys.argv
    request = json.load(sys.stdin)
    with (place / "calls").open("a") as calls:
        calls.write(f"{'check' if check else 'converge'} {program}\n")
    (place / "environment").write_text("".join(f"{key}={value}\n" for key, value in os.environ.items()))
    behaviour = {}
    if (place / "behaviour.json").exists():
        behaviour = json.loads((place / "behaviour.json").read_text())
    print(behaviour.get("noise", ""), end="")
    if "raw" in behaviour:
        print(behaviour["raw"])
        print(behaviour.get("stderr", ""), file=sys.stderr)
        return int(behaviour.get("exit", 0))
    if request["build"] != BUILD:
        print(json.dumps({"format": 2, "program_differs": True, "build": BUILD}))
        return 0
    state = place / "state.json"
    if "atomic" in request:
        (place / "atomic").write_text(json.dumps(request["atomic"]))
    policy = ("build", "atomic", "on_clients", "drain_timeout_s")
    if not check:
        (place / "policy").write_text(json.dumps({key: request[key] for key in policy[2:]}))
    desired = json.dumps({k: v for k, v in request.items() if k not in policy}, indent=1) + "\n"
    before = state.read_text() if state.exists() else ""
    changed = before != desired or program.parent != place
    answer = {
        "format": 2,
        "program_differs": False,
        "check": check,
        "changed": changed,
        "refused": None,
        "missing": None,
        "error": None,
        "actions": ["write state.json"] if before != desired else [],
        "steps": [{"kind": "write-file", "statements": [{"what": "file-written", "name": "state.json"}]}]
        if before != desired
        else [],
        "diff": [{"before_header": "state", "after_header": "state", "before": before, "after": desired}]
        if before != desired
        else [],
        "pending": [],
        "instances": {},
        "warnings": [],
        "host": {"ID": "debian", "ID_LIKE": "", "VERSION_ID": "12", "driver_version": "550.163.01"},
        **behaviour.get("answer", {}),
    }
    if not check and behaviour.get("converge_error"):
        answer["error"] = behaviour["converge_error"]
        answer["put_back"] = behaviour.get("put_back")
        answer["changed"] = False
    elif changed and not check and not answer["refused"] and not answer["missing"]:
        state.write_text(desired)
        if program.parent != place:
            shutil.copyfile(program, place / "mpsctl")
            (place / "mpsctl").chmod(0o755)
    print(json.dumps(answer))
    return 1 if answer["refused"] or answer["missing"] or answer["error"] else 0


sys.exit(main())
