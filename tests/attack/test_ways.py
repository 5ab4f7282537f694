"""Folders of a user on a way of root's: where the program travels, and where instances are to be."""

from __future__ import annotations

import pytest
from tests.lab.rollout import Played, Rollout

from .attempts import attempt
from .conftest import GIVEN, SOMEBODY, Target

SHARED = "/tmp/shared"
SWAP = (
    f"mkdir -m 0777 {SHARED}; printf '#!/bin/sh\\ntouch /tmp/ran-as-root\\n' >/tmp/evil; while :; do"
    f" find {SHARED} -mindepth 1 >>/tmp/seen; for f in $(find {SHARED} -name mpsctl); do"
    " mv $f $f.away; cp /tmp/evil $f; done; done"
)


def play(target: Target, *arguments: str) -> Played:
    return Rollout("attack", [target.host]).play("site.yml", *GIVEN, *arguments)


@attempt(
    "swap the program that root runs",
    tried="make the folder of Ansible's remote_tmp first, where it is shared, watch it without a pause and put another"
    " program in the place of each; a run with --check and one without, on a host that has no program yet",
    result="nothing ever lies in that folder: the program travels into memory, is run from there and installs itself",
)
def test_no_program_of_another_is_run(target: Target) -> None:
    target.run("mv /usr/local/bin/mpsctl /root/mpsctl.kept")
    try:
        with target.process(SOMEBODY, SWAP):
            target.until(f"test -d {SHARED}")
            for arguments in (["--check"], []):
                done = play(target, "-e", f"ansible_remote_tmp={SHARED}", *arguments)
                assert done.exit_code == 0, done.output
        assert target.run("cat /tmp/seen /tmp/ran-as-root 2>/dev/null; true") == ""
        assert target.run("cmp /usr/local/bin/mpsctl /root/mpsctl.kept && echo same") == "same\n"
    finally:
        target.run("test -e /usr/local/bin/mpsctl || cp -p /root/mpsctl.kept /usr/local/bin/mpsctl")
        target.run(f"rm -rf {SHARED} /tmp/evil /tmp/seen /tmp/ran-as-root /root/mpsctl.kept")


@pytest.mark.parametrize("playbook", ["drain", "undrain", "reboot", "measure", "bench", "monitoring"])
@attempt(
    "swap a module of Ansible's that root runs",
    tried="make the folder of Ansible's remote_tmp first, where it is shared and pipelining is off, watch it without a"
    " pause and put another program in the place of each file; the playbooks that run modules",
    result="each fails before a module was sent, names the folder, and says what to set",
)
def test_no_module_travels_through_a_folder_of_another(target: Target, playbook: str) -> None:
    swap = SWAP.replace("-name mpsctl", "-name 'AnsiballZ_*'")
    try:
        with target.process(SOMEBODY, swap):
            target.until(f"test -d {SHARED}")
            given = ("-e", f"ansible_remote_tmp={SHARED}", "-e", "ansible_pipelining=false", "-e", "mps_serial=1")
            done = Rollout("attack", [target.host]).play(f"playbooks/{playbook}.yml", *given)
            said = " ".join(done.output.split())
            assert done.exit_code != 0, said
            assert f"on the way to Ansible's remote_tmp {SHARED}" in said.replace("''", "'"), said
        assert target.run("cat /tmp/seen /tmp/ran-as-root 2>/dev/null; true") == ""
        assert target.main_pid() == target.daemon
        assert target.client()["outcome"] == "client"
    finally:
        target.run(f"rm -rf {SHARED} /tmp/evil /tmp/seen /tmp/ran-as-root")


@pytest.mark.parametrize(
    "spoil",
    [
        "chown -R {user} /srv/theirs",
        "chown -R {user} /srv/theirs/0",
        "chmod 1777 /srv/theirs",
        "chgrp {user} /srv/theirs && chmod g+w /srv/theirs",
        "mv /srv/theirs /srv/real && chown {user} /srv/real && ln -s real /srv/theirs",
    ],
    ids=["his folder", "his folder below", "like /tmp", "his group's", "behind a link"],
)
@attempt(
    "have root write and delete in a folder of his",
    tried="a pipe root that is his, his group's, like /tmp, or behind a link, with folders in it that are named as"
    " 0.2.0 named those of its daemons, and links out of it",
    result="the run fails before anything is changed, with the path and its owner; nothing in it or behind it is"
    " touched",
)
def test_root_does_nothing_in_anothers_folder(target: Target, spoil: str) -> None:
    folders = "/srv/theirs/0/.mydata12345 /srv/theirs/1/.AAAAAAAAAAA"
    target.run(f"mkdir -p {folders} /home/data && for d in {folders} /home/data; do echo work >$d/thesis; done")
    target.run("ln -s /home/data /srv/theirs/0/.link1234567")
    target.run(spoil.format(user=SOMEBODY))
    files = "find -L /srv/theirs /home/data -ls | sort -k 11"
    before = target.run(files)
    try:
        for arguments in (["--check"], []):
            done = play(target, "-e", "mps_pipe_root=/srv/theirs", *arguments)
            assert done.exit_code != 0
            assert "nothing was changed" in " ".join(done.output.split()), done.output
        assert target.run(files) == before
        assert target.run("grep -h ^PipeDirectory /etc/mps/0.conf") == "PipeDirectory=/run/nvidia-mps/%i\n"
    finally:
        target.run("rm -rf /srv/theirs /srv/real /home/data")
