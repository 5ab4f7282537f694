"""The file of an instance, /etc/mps/<instance>.conf: what it may hold, and how each refusal names its place."""

from __future__ import annotations

from typing import Callable, Mapping, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsctl.model.errors import BadValue
from mpsctl.model.instance import Instance, check_gpus
from mpsctl.model.instance_file import from_values, parse_conf
from mpsctl.model.settings import VARIABLES

NEEDED = {"GPUs": "0", "PipeDirectory": "/run/nvidia-mps/0"}
FULL = """\
# Managed by mps-fleet
[Instance]
GPUs=0 1
PipeDirectory=/run/nvidia-mps/%i
; a comment of the other kind
ComputeMode=exclusive_process

[Limits]
DeviceMemoryLimit=20%
ActiveThreadPercentage=12.5
ClientPriority=1

[Timeouts]
DriverTimeoutSec=120
StopTimeoutSec=5
"""


def refused(text: str, name: str = "0") -> BadValue:
    with pytest.raises(BadValue) as refusal:
        parse_conf(text, name)
    assert "\n" not in str(refusal.value)
    return refusal.value


def test_every_key_is_read() -> None:
    instance = parse_conf(FULL, "pair")
    assert instance.gpus == ("0", "1")
    assert instance.pipe_directory == "/run/nvidia-mps/pair"
    assert instance.compute_mode == "exclusive_process"
    assert str(instance.limit) == "20%"
    assert (instance.thread_percentage, instance.client_priority) == (12.5, 1)
    assert (instance.driver_timeout_s, instance.stop_timeout_s) == (120, 5)
    assert instance.unit == "mps-control@pair.service"


def test_a_key_that_is_absent_is_not_managed() -> None:
    instance = parse_conf("[Instance]\nGPUs=0\nPipeDirectory=/run/nvidia-mps/0\n", "0")
    assert instance == Instance("0", ("0",), "/run/nvidia-mps/0")
    assert (instance.compute_mode, instance.limit, instance.thread_percentage, instance.client_priority) == (None,) * 4


def test_percent_i_is_the_name_in_every_value() -> None:
    instance = parse_conf("[Instance]\nGPUs=%i\nPipeDirectory=/run/%i/%i\n", "3")
    assert (instance.gpus, instance.pipe_directory) == (("3",), "/run/3/3")


def test_another_percent_sign_is_left_alone() -> None:
    assert refused("[Instance]\nGPUs=0\nPipeDirectory=/run/%n\n").found == "'/run/%n'"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("GPUs", ""),
        ("GPUs", "0 0"),
        ("GPUs", "first"),
        ("GPUs", "0 # the first"),
        ("PipeDirectory", ""),
        ("PipeDirectory", "run/mps"),
        ("PipeDirectory", "/tmp/nvidia-mps"),
        ("ComputeMode", ""),
        ("ComputeMode", "exclusive"),
        ("ComputeMode", "EXCLUSIVE_PROCESS"),
        ("ComputeMode", "prohibited"),
        ("DeviceMemoryLimit", "20"),
        ("DeviceMemoryLimit", "20GB"),
        ("DeviceMemoryLimit", "1.5G"),
        ("DeviceMemoryLimit", "-1G"),
        ("DeviceMemoryLimit", "0"),
        ("DeviceMemoryLimit", "101%"),
        ("DeviceMemoryLimit", "8192MB"),
        ("DeviceMemoryLimit", "8589934592"),
        ("DeviceMemoryLimit", ""),
        ("ActiveThreadPercentage", "0"),
        ("ActiveThreadPercentage", "0.0"),
        ("ActiveThreadPercentage", "101"),
        ("ActiveThreadPercentage", "100.1"),
        ("ActiveThreadPercentage", "abc"),
        ("ActiveThreadPercentage", "50%"),
        ("ActiveThreadPercentage", "-5"),
        ("ActiveThreadPercentage", "33.33"),
        ("ActiveThreadPercentage", "1e1"),
        ("ActiveThreadPercentage", "nan"),
        ("ClientPriority", "2"),
        ("ClientPriority", "-1"),
        ("ClientPriority", "low"),
        ("ClientPriority", "01"),
        ("DriverTimeoutSec", "0"),
        ("DriverTimeoutSec", "3601"),
        ("DriverTimeoutSec", "90s"),
        ("StopTimeoutSec", "-1"),
        ("StopTimeoutSec", "1.5"),
    ],
)
def test_a_bad_value_is_refused_and_names_its_key_and_variable(key: str, value: str) -> None:
    with pytest.raises(BadValue) as refusal:
        from_values({**NEEDED, key: value}, "0")
    assert refusal.value.key == key
    assert refusal.value.variable == VARIABLES[key]
    assert refusal.value.variable.startswith("mps_")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("key", ["GPUs", "PipeDirectory"])
def test_what_no_instance_can_do_without_is_asked_for(key: str) -> None:
    values = {other: value for other, value in NEEDED.items() if other != key}
    with pytest.raises(BadValue, match=f"found no value, expected {key}") as refusal:
        from_values(values, "0")
    assert (refusal.value.key, refusal.value.variable) == (key, VARIABLES[key])


@pytest.mark.parametrize("value", ["0.1", "1", "12.5", "50", "100", "100.0"])
def test_thread_percentages_have_at_most_one_decimal(value: str) -> None:
    assert from_values({**NEEDED, "ActiveThreadPercentage": value}, "0").thread_percentage == float(value)


def test_an_unknown_key_is_refused_with_the_one_that_was_meant() -> None:
    refusal = refused("[Limits]\nDeviceMemoryLimits=4G\n")
    assert refusal.key == "DeviceMemoryLimits"
    assert refusal.remedy == "did you mean DeviceMemoryLimit?"


def test_keys_are_case_sensitive() -> None:
    assert refused("[Instance]\ngpus=0\n").remedy == "did you mean GPUs?"


def test_a_key_in_another_section_than_its_own_is_refused() -> None:
    refusal = refused("[Limits]\nGPUs=0\n")
    assert refusal.found == "GPUs in [Limits]"
    assert refusal.remedy == "move it to [Instance]"


def test_an_unknown_section_is_refused() -> None:
    assert refused("[Instance]\n[Limit]\n").found == "[Limit]"


def test_a_default_section_is_no_way_around_the_others() -> None:
    """Python's parser would spread its keys over all sections, or drop them unseen."""
    assert refused("[DEFAULT]\nGPUs=0\n[Instance]\nPipeDirectory=/run/mps\n").found == "[DEFAULT]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[Instance]\nGPUs=0\nGPUs=1\n", "option 'GPUs' in section 'Instance' already exists"),
        ("[Instance]\n[Instance]\n", "section 'Instance' already exists"),
        ("GPUs=0\n", "no section headers"),
        ("[Instance]\nGPUs\n", "[line  2]"),
    ],
)
def test_what_is_no_such_file_is_refused_with_its_line(text: str, says: str) -> None:
    assert " ".join(says.split()) in refused(text).found


def refusal_of(read: Callable[[], object]) -> Optional[BadValue]:
    try:
        read()
    except BadValue as refusal:
        return refusal
    return None


@given(st.text(max_size=60))
def test_any_text_is_an_instance_or_refused_on_one_line(text: str) -> None:
    refusal = refusal_of(lambda: parse_conf("[Instance]\nGPUs=0\nPipeDirectory=/run/mps\n" + text, "0"))
    assert "\n" not in str(refusal)


@given(st.dictionaries(st.sampled_from(sorted(VARIABLES)), st.text(max_size=12)))
def test_any_value_is_taken_or_refused_with_its_key(values: Mapping[str, str]) -> None:
    refusal = refusal_of(lambda: from_values({**NEEDED, **values}, "0"))
    if refusal:
        assert refusal.key in values
        assert refusal.variable == VARIABLES[str(refusal.key)]


def instance(name: str, *gpus: str) -> Instance:
    return Instance(name, gpus, f"/run/nvidia-mps/{name}")


def test_two_instances_on_one_gpu_are_refused_naming_both() -> None:
    with pytest.raises(BadValue) as refusal:
        check_gpus([instance("a", "0"), instance("b", "1", "0")])
    assert "GPU 0 in the instances 'a' and 'b'" in str(refusal.value)
    assert refusal.value.variable == "mps_instances"


def test_two_instances_of_one_name_are_refused() -> None:
    with pytest.raises(BadValue, match="two instances named 'a'") as refusal:
        check_gpus([instance("a", "0"), instance("a", "1")])
    assert refusal.value.variable == "mps_instances"


def test_instances_side_by_side_are_fine() -> None:
    check_gpus([instance("a", "0"), instance("b", "1"), instance("c", "2", "3")])
