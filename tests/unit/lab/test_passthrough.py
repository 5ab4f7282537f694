"""What of a machine's driver goes into a host with a real GPU: by what the machine has, and nothing else of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpslab import passthrough
from mpslab.errors import LabError
from mpslab.passthrough import Bind

MODULE = "NVRM version: NVIDIA UNIX {kind}  580.65.06  Sun Jul 27 07:20:29 UTC 2025\nGCC version: 12\n"
LISTING = """\
	libz.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libz.so.1
	libnvidia-ml.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-ml.so.1
	libnvidia-ml.so.1 (libc6) => /lib/i386-linux-gnu/libnvidia-ml.so.1
	libnvidia-gpucomp.so.580.65.06 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-gpucomp.so.580.65.06
	libnvcuvid.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvcuvid.so.1
	libcudart.so.12 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.12
	libcuda.so.1 (libc6) => /lib/i386-linux-gnu/libcuda.so.1
	libcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1
	libcuda.so (libc6,AArch64) => /lib/aarch64-linux-gnu/libcuda.so
"""
SPREAD = (
    "lib/x86_64-linux-gnu/libz.so.1",
    "lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "lib/i386-linux-gnu/libnvidia-ml.so.1",
    "lib/x86_64-linux-gnu/libnvidia-gpucomp.so.580.65.06",
    "lib/x86_64-linux-gnu/libcuda.so.1",
    "lib/i386-linux-gnu/libcuda.so.1",
    "lib/aarch64-linux-gnu/libcuda.so",
    "usr/bin/nvidia-smi",
    "usr/bin/nvidia-cuda-mps-control",
    "usr/sbin/nvidia-cuda-mps-server",
    "usr/bin/nvidia-persistenced",
    "usr/bin/nvidia-settings",
)
DEVICES = ("dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-uvm-tools", "dev/nvidia0", "dev/nvidia11", "dev/nvme0")


def machine(root: Path, *files: str) -> Path:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def read_only(binds: list[Bind]) -> dict[str, str]:
    return {str(bind.target): str(bind.source) for bind in binds if not bind.writable}


@pytest.mark.parametrize("folder", ["usr/local/nvidia", "opt/nvidia"])
@pytest.mark.parametrize("parts", [("lib64", "bin"), ("lib", "bin"), ("lib64", "lib", "bin")])
def test_a_driver_in_folders_of_its_own(tmp_path: Path, folder: str, parts: tuple[str, ...]) -> None:
    files = [f"{folder}/{part}/{'nvidia-smi' if part == 'bin' else 'libcuda.so.1'}" for part in parts]
    machine(tmp_path, *files, f"{folder}/nsight/tool", *DEVICES, *SPREAD)
    found = read_only(passthrough.binds(tmp_path, LISTING))
    assert found == {f"/usr/local/nvidia/{part}": f"{tmp_path}/{folder}/{part}" for part in parts}


def test_a_driver_of_the_distribution_file_by_file(tmp_path: Path) -> None:
    machine(tmp_path, "opt/nvidia/nsight/bin/tool", *DEVICES, *SPREAD)
    found = read_only(passthrough.binds(tmp_path, LISTING))
    assert found == {
        "/usr/local/nvidia/lib64/libcuda.so": f"{tmp_path}/lib/aarch64-linux-gnu/libcuda.so",
        "/usr/local/nvidia/lib64/libcuda.so.1": f"{tmp_path}/lib/x86_64-linux-gnu/libcuda.so.1",
        "/usr/local/nvidia/lib64/libnvidia-gpucomp.so.580.65.06": (
            f"{tmp_path}/lib/x86_64-linux-gnu/libnvidia-gpucomp.so.580.65.06"
        ),
        "/usr/local/nvidia/lib64/libnvidia-ml.so.1": f"{tmp_path}/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "/usr/local/nvidia/bin/nvidia-cuda-mps-control": f"{tmp_path}/usr/bin/nvidia-cuda-mps-control",
        "/usr/local/nvidia/bin/nvidia-cuda-mps-server": f"{tmp_path}/usr/sbin/nvidia-cuda-mps-server",
        "/usr/local/nvidia/bin/nvidia-smi": f"{tmp_path}/usr/bin/nvidia-smi",
    }


def test_a_module_without_its_libraries(tmp_path: Path) -> None:
    machine(tmp_path, *DEVICES)
    with pytest.raises(LabError, match=r"no libcuda\.so\.1 in /usr/local/nvidia or /opt/nvidia"):
        passthrough.binds(tmp_path, "	libz.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libz.so.1\n")


def test_the_devices_can_be_written_to_and_no_other_is_there(tmp_path: Path) -> None:
    machine(tmp_path, "usr/local/nvidia/lib64/libcuda.so.1", *DEVICES, "dev/nvidia-caps/nvidia-cap1")
    found = {str(bind.target) for bind in passthrough.binds(tmp_path) if bind.writable}
    assert found == {f"/{name}" for name in DEVICES if "nvidia" in name} | {"/dev/nvidia-caps"}


@pytest.mark.parametrize("kind", ["x86_64 Kernel Module", "Open Kernel Module for x86_64"])
def test_the_machine_s_gpus(tmp_path: Path, kind: str) -> None:
    machine(tmp_path, *DEVICES, "proc/driver/nvidia/version")
    (tmp_path / "proc/driver/nvidia/version").write_text(MODULE.format(kind=kind))
    assert passthrough.gpus(tmp_path) == passthrough.Gpus(2, "580.65.06")


def test_a_driver_that_does_not_say_its_release(tmp_path: Path) -> None:
    assert passthrough.gpus(machine(tmp_path, *DEVICES)) == passthrough.Gpus(2, "")


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ((), "found no NVIDIA driver"),
        (("dev/nvme0",), "found no NVIDIA driver"),
        (("dev/nvidiactl", "dev/nvidia0"), "found no /dev/nvidia-uvm"),
    ],
)
def test_a_machine_without_a_whole_driver(tmp_path: Path, devices: tuple[str, ...], words: str) -> None:
    (tmp_path / "dev").mkdir()
    with pytest.raises(LabError, match=words):
        passthrough.gpus(machine(tmp_path, *devices))


@pytest.mark.parametrize(
    ("bind", "option"),
    [
        (Bind(Path("/a"), Path("/b")), "--bind-ro=/a:/b"),
        (Bind(Path("/dev/nvidia0"), Path("/dev/nvidia0"), writable=True), "--bind=/dev/nvidia0:/dev/nvidia0"),
        (Bind(Path("/a:b\\c"), Path("/d")), "--bind-ro=/a\\:b\\\\c:/d"),
    ],
)
def test_a_bind_in_the_words_of_nspawn(bind: Bind, option: str) -> None:
    assert bind.option() == option


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/usr", ("/usr", "/usr")),
        ("/:/machine", ("/", "/machine")),
        ("/usr/../usr/:/srv/data//", ("/usr", "/srv/data")),
    ],
)
def test_a_share(text: str, found: tuple[str, str]) -> None:
    assert passthrough.share(text) == found


@pytest.mark.parametrize(
    "text",
    ["/nowhere", "usr", "", "/etc/passwd:/p", "/", "/:/", "/usr:srv", "/usr:/run/x", "/usr:/dev", "/usr:/a/../etc",
     "/:/./", "/etc", "/usr://etc"],
)  # fmt: skip
def test_a_share_that_cannot_be(text: str) -> None:
    with pytest.raises(LabError, match=f"found --share {text}, expected"):
        passthrough.share(text)
