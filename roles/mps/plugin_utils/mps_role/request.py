"""What is asked of a host: the role's files, rendered, in the form that `mpsctl reconcile` reads."""

from __future__ import annotations

import functools
from typing import Any, Mapping

import jinja2

from . import project
from .variables import OVERRIDES, PREFIX

FORMAT = 1
EACH = "%i"
"""Stands for the instance's name in its file, and so for the GPU where each has an instance."""


@functools.lru_cache(maxsize=1)
def _templates() -> jinja2.Environment:
    # As Ansible's own template module has it, but nothing except the role's variables can get in.
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(project.ROLE / "templates"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )


def request(values: Mapping[str, Any], places: Mapping[str, str], build: str, atomic: bool = False) -> dict[str, Any]:
    """The request for one host.

    ``values`` are the role's variables, ``places`` its internal ones that templates use, ``build`` the id of
    the program that must answer. ``atomic`` asks for changed limits alone, whole or not at all.
    """
    unit = _templates().get_template("mps-control@.service.j2").render({**places, **values})
    entries = values[f"{PREFIX}instances"]
    return {
        "format": FORMAT,
        "build": build,
        "files": [{"path": places["_mps_unit"], "content": unit, "mode": "0644"}],
        "instances": [{"name": entry["name"], "conf": _conf(values, entry)} for entry in entries or ()],
        "instance_per_gpu": _conf(values, {"gpus": [EACH]}) if entries is None else None,
        **({"atomic": True} if atomic else {}),
    }


def _conf(values: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    instance = {key: entry[key] if key in entry else values[PREFIX + key] for key in OVERRIDES}
    instance["gpus"] = [str(gpu) for gpu in entry["gpus"]]
    return _templates().get_template("instance.conf.j2").render({**values, "instance": instance})
