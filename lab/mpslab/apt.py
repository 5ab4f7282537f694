"""Apt with a configuration and state of its own: the machine's stay as they are."""

from __future__ import annotations

from pathlib import Path

from mpslab import processes, roots


def private(work: Path, source_line: str) -> dict[str, str]:
    """Make an apt in the folder ``work`` that knows one archive; the environment of its commands.

    What counts as installed is in ``work``/status, which is made empty where it is not there.
    """
    for folder in ("state/lists/partial", "cache/archives/partial", "sources.list.d", "preferences.d"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources.list").write_text(source_line + "\n")
    (work / "apt.conf").write_text(
        "\n".join(
            (
                *roots.apt_options(),
                f'Dir::Etc::SourceList "{work}/sources.list";',
                f'Dir::Etc::SourceParts "{work}/sources.list.d";',
                f'Dir::Etc::Preferences "{work}/preferences";',
                f'Dir::Etc::PreferencesParts "{work}/preferences.d";',
                f'Dir::State "{work}/state";',
                f'Dir::State::Status "{work}/status";',
                f'Dir::Cache "{work}/cache";',
                'APT::Sandbox::User "root";',
                'APT::Install-Recommends "false";',
                'Acquire::Languages "none";',
                # unstable suites may stand past their date for days; their signature is checked all the same
                'Acquire::Check-Valid-Until "false";',
            )
        )
    )
    return {**processes.ENVIRONMENT, "APT_CONFIG": str(work / "apt.conf")}
