"""The oldest and the newest Ansible that are supported, each on the Python that it comes with.

A lab host is the controller: Debian 12 has Python 3.11, which resolves to ansible-core 2.19, and Debian 13
has 3.13, which can run 2.21. It converges another lab host over ssh.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from .conftest import PROJECT, LabHost, hosts

RUN = (
    "cd /opt/project && PYTHONPATH=/opt/ansible HOME=/root ANSIBLE_NOCOLOR=1 LC_ALL=C.UTF-8"
    " python3 -m ansible playbook -i /opt/inventory.json site.yml -l gpu-nodes"
)


def ansible_for(python: str, core: str, folder: Path) -> bytes:
    """A tar of ansible-core and what it needs, for another Python than ours."""
    target = folder / "ansible"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"),
            *("--target", str(target), "--python-version", python, "--implementation", "cp"),
            *("--only-binary=:all:", "--ignore-requires-python", f"ansible-core=={core}.*", "nvidia-ml-py>=13.580,<14"),
        ],
        check=True,
    )
    return packed(target, Path("ansible"))


def packed(source: Path, name: Path) -> bytes:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(source, arcname=str(name))
    return buffer.getvalue()


def project() -> bytes:
    """A tar of the project as it stands, without what its tools made."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=PROJECT, capture_output=True, check=True
    )
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in listed.stdout.decode().splitlines():
            if (PROJECT / name).is_file():
                archive.add(PROJECT / name, arcname=f"project/{name}")
    return buffer.getvalue()


def inventory(target: LabHost) -> str:
    variables = {
        "ansible_host": target.facts["address"],
        "ansible_port": target.facts["port"],
        "ansible_user": "root",
        "ansible_ssh_private_key_file": "/root/lab-key",
        "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
        "mps_device_memory_limit": "4G",
    }
    return json.dumps({"gpu-nodes": {"hosts": {target.name: variables}}})


@pytest.mark.parametrize(("release", "python", "core"), [("bookworm", "3.11", "2.19"), ("trixie", "3.13", "2.21")])
def test_site_converges_a_host_without_a_warning(release: str, python: str, core: str, tmp_path: Path) -> None:
    with hosts(f"ctl-{release}", "--hosts", "2", "--gpus", "1", "--release", release) as (controller, target):
        controller.run("tar -x -C /opt", ansible_for(python, core, tmp_path))
        controller.run("tar -x -C /opt", project())
        controller.run("cat > /root/lab-key && chmod 600 /root/lab-key", Path(target.facts["key"]).read_bytes())
        controller.run("cat > /opt/inventory.json", inventory(target).encode())
        assert f"core {core}." in controller.run("PYTHONPATH=/opt/ansible python3 -m ansible playbook --version")
        for changed, said in ((1, controller.run(RUN)), (0, controller.run(RUN))):
            assert "WARNING" not in said, said
            assert f"changed={changed} " in said.split("PLAY RECAP")[1], said
        target.run("mpsctl status")
