"""JupyterHub with systemdspawner, wired by the example of the docs: each user's program arrives at the instance of the
profile that he chose, under his own user, and a stop of his server has the daemon take it off first.

JupyterHub, the spawner, systemd, NVIDIA's control daemon and the front door are real. Simulated, and named so, are the
notebook server, whose one kernel is the lab's CUDA client, and the proxy, which would need node.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Iterator, Optional

import pytest

from . import containers
from .conftest import LabHost, hosts
from .front_door import until
from .rollout import Rollout

PACKAGES = ("jupyterhub==6.1.1", "jupyterhub-systemdspawner==1.0.2")
PORT = 8081
TOKEN = "of-the-test"
USERS = {"alice": 2001, "bob": 2002}

_MORE = """
from jupyterhub.proxy import Proxy


class NoProxy(Proxy):
    '''SIMULATED (mps-fleet tests): it routes nobody, the test asks the hub itself.'''

    should_start = False
    routes = {{}}

    async def add_route(self, routespec, target, data):
        self.routes[routespec] = {{"routespec": routespec, "target": target, "data": data}}

    async def delete_route(self, routespec):
        self.routes.pop(routespec, None)

    async def get_all_routes(self):
        return dict(self.routes)


c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.hub_ip = c.Spawner.ip = "{address}"
c.JupyterHub.hub_port = {port}
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allowed_users = set({users})
c.JupyterHub.services = [{{"name": "test", "api_token": "{token}"}}]
c.JupyterHub.load_roles = [{{"name": "test", "services": ["test"], "scopes": ["admin:users", "admin:servers"]}}]
c.Spawner.cmd = ["/srv/hub/notebook"]
"""
_NOTEBOOK = """\
#!/usr/bin/python3 -IS
# SIMULATED (mps-fleet tests): a notebook server with one kernel, the lab's CUDA client. It answers the hub.
import http.server
import os
import subprocess
import urllib.parse


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


subprocess.Popen(["/usr/lib/mps-lab/simulated_client.py", "--hold", "forever"])
url = urllib.parse.urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
http.server.ThreadingHTTPServer((url.hostname, url.port), Answer).serve_forever()
"""


class Hub:
    """A hub on a host."""

    def __init__(self, host: LabHost) -> None:
        self.host = host

    def ask(self, method: str, path: str, body: Optional[dict[str, str]] = None) -> int:
        """Ask its REST API; the status."""
        address = f"http://{self.host.facts['address']}:{PORT}/hub/api{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data, {"Authorization": f"token {TOKEN}"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)

    def answers(self) -> bool:
        try:
            return self.ask("GET", "/") == 200
        except OSError:
            return False

    def newcomers(self, instance: str) -> list[tuple[int, int]]:
        """The clients that an instance's control daemon took in, by its own log: each one's process and user."""
        log = self.host.run(f"journalctl -b -q -o cat -t mps-control@{instance}")
        return [(int(pid), int(uid)) for pid, uid in re.findall(r"NEW CLIENT (\d+) from user (\d+)", log)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JupyterHub and its dependencies, for the Python of Debian 12, as an archive."""
    folder = tmp_path_factory.mktemp("hub")
    wanted = ("--python-version", "3.11", "--only-binary=:all:", "--target", folder / "lib")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted, *PACKAGES], check=True)
    subprocess.run(["tar", "--create", "-C", folder / "lib", "-f", folder / "lib.tar", "."], check=True)
    return folder / "lib.tar"


@pytest.fixture(scope="module")
def hub(installed: Path) -> Iterator[Hub]:
    options = ("--hosts", "1", "--gpus", "2", "--release", "bookworm", "--daemon", "550", "--standin-server")
    with hosts("hub", *options) as (host,):
        done = Rollout("hub", [host]).play("site.yml")
        assert done.exit_code == 0, done.output
        host.run("mkdir -p /srv/hub/lib && tar --extract -C /srv/hub/lib", installed.read_bytes())
        for user, uid in USERS.items():
            host.run(f"useradd -m -u {uid} {user}")
        text = (containers.EXAMPLES / "jupyterhub_config.py").read_text()
        text += _MORE.format(address=host.facts["address"], port=PORT, users=sorted(USERS), token=TOKEN)
        host.run("cat >/srv/hub/jupyterhub_config.py", text.encode())
        host.run("cat >/srv/hub/notebook && chmod 755 /srv/hub/notebook", _NOTEBOOK.encode())
        host.run(
            "systemd-run -q --unit hub -p WorkingDirectory=/srv/hub -E PYTHONPATH=/srv/hub/lib"
            " python3 -m jupyterhub -f /srv/hub/jupyterhub_config.py"
        )
        made = Hub(host)
        until(made.answers, "the hub answers", told=lambda: host.run("journalctl -q -u hub -o cat | tail -30"))
        yield made


@pytest.mark.parametrize(("user", "profile", "instance"), [("alice", "small", "0"), ("bob", "large", "1")])
def test_a_user_arrives_at_the_instance_of_his_profile(hub: Hub, user: str, profile: str, instance: str) -> None:
    assert hub.ask("POST", f"/users/{user}/server", {"profile": profile}) in (201, 202)
    journal = f"journalctl -q -o cat -u hub -u jupyter-{user}-singleuser | tail -30"
    came = until(
        lambda: [pid for pid, uid in hub.newcomers(instance) if uid == USERS[user]],
        f"{user} is a client of {instance}",
        told=lambda: hub.host.run(journal),
    )
    unit = hub.host.run(f"cat /proc/{came[-1]}/cgroup")
    assert f"jupyter-{user}-singleuser.service" in unit
    other = {"0": "1", "1": "0"}[instance]
    assert USERS[user] not in {uid for _, uid in hub.newcomers(other)}


def test_a_stop_of_a_server_has_the_daemon_take_its_kernels_off_first(hub: Hub) -> None:
    pid = next(pid for pid, uid in reversed(hub.newcomers("0")) if uid == USERS["alice"])
    assert hub.ask("DELETE", "/users/alice/server") in (202, 204)
    until(
        lambda: "inactive" in hub.host.run("systemctl is-active jupyter-alice-singleuser", check=False), "it has ended"
    )
    log = hub.host.run("journalctl -b -q -o cat -t mps-control@0")
    assert re.search(rf"terminate_client \d+ {pid}\b", log), log


def test_a_profile_that_is_none_starts_nothing(hub: Hub) -> None:
    with pytest.raises(OSError, match="500"):
        hub.ask("POST", "/users/alice/server", {"profile": "huge"})
    assert "found the profile 'huge'" in hub.host.run("journalctl -q -o cat -u hub")
    assert hub.host.run("systemctl is-active jupyter-alice-singleuser", check=False).strip() == "inactive"
