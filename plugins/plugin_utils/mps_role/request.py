"""What is asked of a host: the role's files and those of its instances, in the form that `mpsctl reconcile` reads."""

from __future__ import annotations

import base64
import functools
from pathlib import PurePosixPath
from typing import Any, Mapping

import jinja2

from . import project  # first: it makes mpsctl importable

from mpsctl.converge.request import FORMAT  # isort: skip
from mpsctl.model import instance_file  # isort: skip
from mpsctl.model.setting import PREFIX  # isort: skip
from mpsctl.model.settings import BY_KEY, SETTINGS  # isort: skip

EACH = "%i"
"""Stands for the instance's name in its file, and so for the GPU where each has an instance."""


PLACES = (
    "_mps_program",
    "_mps_unit",
    "_mps_door_socket",
    "_mps_door_service",
    "_mps_health_service",
    "_mps_health_timer",
)
"""The role's internal variables that name places on a host."""

POLICY = ("on_clients", "drain_timeout_s")
"""What becomes of clients in the way of a step that would end them."""

_FILES = {
    "_mps_unit": "mps-control@.service.j2",
    "_mps_door_socket": "mps-front-door@.socket.j2",
    "_mps_door_service": "mps-front-door@.service.j2",
    "_mps_health_service": "mps-health.service.j2",
    "_mps_health_timer": "mps-health.timer.j2",
}
"""The template of each file that belongs to no instance, by the variable that names its place."""


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
    entries = values[f"{PREFIX}instances"]
    # To a template every text is true, and `-e mps_front_door=false` gives one.
    typed = {one.variable: one.check(values[one.variable]) for one in SETTINGS if one.type == "bool"}
    return {
        "format": FORMAT,
        "build": build,
        "files": [
            {"path": places[place], "content": _rendered(template, {**places, **values, **typed}), "mode": "0644"}
            for place, template in _FILES.items()
        ],
        "units": [PurePosixPath(places["_mps_health_timer"]).name],
        "instances": [{"name": entry["name"], "conf": _conf(values, entry)} for entry in entries or ()],
        "instance_per_gpu": _conf(values, {"gpus": [EACH]}) if entries is None else None,
        "clients": list(values[f"{PREFIX}clients"] or ()),
        "selinux_module": _selinux_module() if typed[f"{PREFIX}selinux_module"] else None,
        "cdi": typed[f"{PREFIX}cdi"],
        # What a run may do, and nothing that a host is to be: it stands in no file there.
        **{key: values[PREFIX + key] for key in POLICY},
        **({"atomic": True} if atomic else {}),
    }


def _selinux_module() -> str:
    """The module that `scripts/build_selinux.sh` built, for JSON."""
    return base64.b64encode((project.ROLE / "files" / "mps_fleet.pp").read_bytes()).decode()


def removal(values: Mapping[str, Any], build: str) -> dict[str, Any]:
    """The request to take everything of the project off a host.

    ``values`` are the role's variables; they say what becomes of its clients.
    """
    policy = {key: values[PREFIX + key] for key in POLICY}
    return {"format": FORMAT, "build": build, "files": [], "instances": [], "remove": True, **policy}


def _conf(values: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """The file of one instance; ``entry`` is its own in mps_instances."""
    own = {
        key: entry[setting.name] if setting.per_instance and setting.name in entry else values[setting.variable]
        for key, setting in BY_KEY.items()
    }
    gpus = " ".join(str(gpu) for gpu in entry["gpus"])
    return instance_file.render({**own, "GPUs": gpus, "PipeDirectory": f"{values[PREFIX + 'pipe_root']}/{EACH}"})


def _rendered(template: str, values: Mapping[str, Any]) -> str:
    return _templates().get_template(template).render(values)
