"""Debian's archive as this machine reaches it: from its own apt configuration, so that any mirror works."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Iterator, Optional

_DERIVED = re.compile(r".*(-security|-updates|-backports|-proposed-updates|/updates)$")
_OPTION = re.compile(r"^Acquire::(https?::.*|ForceIPv[46]|Retries|Check-Valid-Until|Check-Date|Max-FutureTime) ", re.I)


@dataclass(frozen=True)
class Source:
    """One line of apt's: where, which suite, which components."""

    uri: str
    suite: str
    components: tuple[str, ...]


def one_line(text: str) -> Iterator[Source]:
    """The ``deb`` lines of a sources.list."""
    for line in text.splitlines():
        words = re.sub(r"\[[^]]*\]", " ", line.partition("#")[0]).split()
        if len(words) >= 4 and words[0] == "deb":
            yield Source(words[1], words[2], tuple(words[3:]))


def deb822(text: str) -> Iterator[Source]:
    """The stanzas of a .sources file, one source for each of their URIs and suites."""
    without_comments = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*\n", without_comments):
        fields: dict[str, list[str]] = {}
        key = ""
        for line in stanza.splitlines():
            if line[:1] not in " \t" and ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.split()
            elif key:
                fields[key] += line.split()
        if fields.get("enabled", ["yes"])[0].lower() in ("no", "false", "0") or "deb" not in fields.get("types", []):
            continue
        for uri in fields.get("uris", []):
            for suite in fields.get("suites", []):
                yield Source(uri, suite, tuple(fields.get("components", [])))


def of_directory(directory: Path) -> list[Source]:
    """Everything apt would read under a directory such as /etc/apt."""
    found: list[Source] = []
    for path in [directory / "sources.list", *sorted(directory.glob("sources.list.d/*"))]:
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".sources":
            found += deb822(text)
        elif path.suffix == ".list":
            found += one_line(text)
    return found


def debian_uri(sources: Iterable[Source], machine_suites: Iterable[str]) -> Optional[str]:
    """The archive that a Debian machine takes its own release from: it has the other suites too.

    :param machine_suites: the names of the machine's release, such as bookworm and stable.
    """
    names = set(machine_suites)
    for source in sources:
        if source.suite in names and "main" in source.components and not _DERIVED.match(source.suite):
            return source.uri
    return None


def machine_uri(root: Path = Path("/")) -> Optional[str]:
    """The same for this machine, or None where it is no Debian: mmdebstrap then knows where Debian lies."""
    release = {}
    for line in (root / "etc/os-release").read_text().splitlines():
        key, _, value = line.partition("=")
        release[key] = value.strip('"')
    if release.get("ID") != "debian":
        return None
    suites = ["stable", "testing", "unstable", "sid", release.get("VERSION_CODENAME", "")]
    return debian_uri(of_directory(root / "etc/apt"), filter(None, suites))


def network_options(dump: str) -> list[str]:
    """Of ``apt-config dump``, what says how this machine reaches an archive: proxies, certificates, dates."""
    kept = []
    for line in dump.splitlines():
        if _OPTION.match(line) and not line.endswith(' "";'):
            kept.append(line)
    return kept
