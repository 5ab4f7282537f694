"""The examples of docs/clients: what the pages say of them holds, and every one is named by a page.

Those for containers are run by tests/lab. No cluster is tried: here pods are held against the fields that Kubernetes
has, and against what the instance needs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

CLIENTS = Path(__file__).resolve().parents[2] / "docs/clients"
EXAMPLES = CLIENTS / "examples"
PODS = {"pod-gpu-instance.yaml": "0", "pod-node-instance.yaml": "all"}
"""Each pod with the instance that it is to be a client of."""


def load(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / name).read_text())


def test_every_example_is_named_by_a_page_and_every_link_leads_somewhere() -> None:
    pages = {page.name: page.read_text() for page in CLIENTS.glob("*.md")}
    linked = {link for text in pages.values() for link in re.findall(r"\(examples/([^)#]+)\)", text)}
    present = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert present <= linked, "no page names them"
    assert linked <= present, "pages name what is not there"


@pytest.mark.parametrize(("name", "instance"), PODS.items())
def test_a_pod_mounts_the_directory_of_its_instance_and_says_so(name: str, instance: str) -> None:
    pod = load(name)
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")
    public = f"/run/nvidia-mps/{instance}"
    (container,) = pod["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert variables["CUDA_MPS_PIPE_DIRECTORY"] == public
    (mount,) = container["volumeMounts"]
    (volume,) = pod["spec"]["volumes"]
    assert mount == {"name": volume["name"], "mountPath": public, "readOnly": True}
    assert volume["hostPath"] == {"path": public, "type": "Directory"}


@pytest.mark.parametrize(("name", "instance"), PODS.items())
def test_a_pod_lands_where_its_instance_is(name: str, instance: str) -> None:
    spec = load(name)["spec"]
    assert spec["nodeSelector"] == {f"mps-fleet/instance-{instance}": "true"}
    (container,) = spec["containers"]
    by_plugin = instance == "all"
    resource = "nvidia.com/gpu.shared" if by_plugin else f"mps-fleet/instance-{instance}"
    assert container["resources"] == {"limits": {resource: 1}}
    variables = {one["name"]: one["value"] for one in container["env"]}
    # Whoever gets the GPU by the plugin must not name one, and whoever does not needs NVIDIA's runtime for it.
    assert variables.get("NVIDIA_VISIBLE_DEVICES") == (None if by_plugin else instance)
    assert spec.get("runtimeClassName") == (None if by_plugin else "nvidia")


@pytest.mark.parametrize("name", PODS)
def test_a_pod_asks_for_nothing_that_it_does_not_need(name: str) -> None:
    spec = load(name)["spec"]
    assert not {"hostPID", "hostNetwork", "hostIPC"} & set(spec)
    (container,) = spec["containers"]
    assert not {"CUDA_VISIBLE_DEVICES", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"} & {one["name"] for one in container["env"]}
    assert spec["securityContext"]["runAsUser"] == 1000
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_plugins_configuration_shares_without_mps_and_gives_what_the_pod_asks_for() -> None:
    configuration = load("device-plugin.yaml")
    assert set(configuration["sharing"]) == {"timeSlicing"}
    sharing = configuration["sharing"]["timeSlicing"]
    (resource,) = sharing["resources"]
    assert sharing["renameByDefault"] is True
    assert resource["name"] == "nvidia.com/gpu"
    page = (CLIENTS / "kubernetes.md").read_text()
    assert f"`mps_expected_clients: {resource['replicas']}`" in page
    assert "nvidia.com/gpu.shared" in load("pod-node-instance.yaml")["spec"]["containers"][0]["resources"]["limits"]
