"""Which file of vars/ knows the control daemon's package for a host."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from . import project


def vars_file(host: Mapping[str, Any]) -> Optional[str]:
    """The file for the host's distribution, or for the first that it says it is like; None if there is none."""
    for name in (str(host.get("ID", "")), *str(host.get("ID_LIKE", "")).split()):
        if name.isalnum() and name != "main" and (project.ROLE / "vars" / f"{name}.yml").is_file():
            return f"{name}.yml"
    return None


def refusal(host: Mapping[str, Any], wanted: Any) -> Optional[str]:
    """Why the package cannot be told on this host, as one line, or None."""
    if not wanted or isinstance(wanted, str):
        return None
    file = vars_file(host)
    if file is None:
        known = ", ".join(sorted(path.stem for path in (project.ROLE / "vars").glob("*.yml") if path.stem != "main"))
        found = f"true on the distribution {host.get('ID') or 'unknown'!r}"
        return f"mps_package: found {found}, expected one like {known}; write the package's name instead of true"
    if "driver_version" in (project.ROLE / "vars" / file).read_text(encoding="utf-8") and not host.get(
        "driver_version"
    ):
        return (
            "mps_package: found true and no loaded driver, expected one whose branch names the package;"
            " load the driver, or write the package's name instead of true"
        )
    return None
