"""Debian's archive is found in the machine's own apt configuration, in either of its forms."""

from __future__ import annotations

from pathlib import Path

from mpslab import sources

DEB822 = """\
# the release
Types: deb deb-src
URIs: https://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

# nothing but a comment stands between

Types: deb
URIs: https://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
Enabled: no
URIs: https://off.example/debian
Suites: bookworm
Components: main
"""


def write(root: Path, os_release: str, **files: str) -> Path:
    (root / "etc/apt/sources.list.d").mkdir(parents=True)
    (root / "etc/os-release").write_text(os_release)
    for name, text in files.items():
        (root / "etc/apt/sources.list.d" / name.replace("_", ".")).write_text(text)
    return root


def test_a_stanza_stands_for_each_of_its_suites() -> None:
    assert list(sources.deb822(DEB822))[:2] == [
        sources.Source("https://mirror.example/debian", "bookworm", ("main", "contrib")),
        sources.Source("https://mirror.example/debian", "bookworm-updates", ("main", "contrib")),
    ]


def test_what_is_switched_off_is_not_there() -> None:
    assert not [source for source in sources.deb822(DEB822) if "off.example" in source.uri]


def test_a_value_may_go_on_over_lines() -> None:
    text = "Types: deb\nURIs:\n https://a.example/debian\n https://b.example/debian\nSuites: sid\nComponents: main\n"
    assert [source.uri for source in sources.deb822(text)] == ["https://a.example/debian", "https://b.example/debian"]


def test_one_line_form_with_options_and_comments() -> None:
    text = "#deb https://no.example d main\ndeb [arch=amd64 signed-by=/k.gpg] https://yes.example/d trixie main # why\n"
    assert list(sources.one_line(text)) == [sources.Source("https://yes.example/d", "trixie", ("main",))]


def test_a_debian_machine_names_its_own_archive(tmp_path: Path) -> None:
    root = write(tmp_path, 'ID=debian\nVERSION_CODENAME="bookworm"\n', debian_sources=DEB822)
    assert sources.machine_uri(root) == "https://mirror.example/debian"


def test_a_security_archive_and_another_publishers_are_not_taken_for_it(tmp_path: Path) -> None:
    others = "deb https://security.example/d bookworm-security main\ndeb https://tools.example stable extra\n"
    root = write(tmp_path, "ID=debian\nVERSION_CODENAME=bookworm\n", tools_list=others)
    assert sources.machine_uri(root) is None


def test_ubuntu_leaves_the_choice_to_mmdebstrap(tmp_path: Path) -> None:
    ubuntu = "deb https://mirror.example/ubuntu noble main\n"
    assert sources.machine_uri(write(tmp_path, "ID=ubuntu\nVERSION_CODENAME=noble\n", ubuntu_list=ubuntu)) is None


def test_only_how_the_archive_is_reached_is_taken_over() -> None:
    dump = (
        'APT::Install-Recommends "0";\nAcquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::https::Verify-Peer "";\nAcquire::Check-Valid-Until "false";\nAcquire::Languages "none";\n'
    )
    assert sources.network_options(dump) == [
        'Acquire::http::Proxy "http://proxy.example:3128";',
        'Acquire::Check-Valid-Until "false";',
    ]
