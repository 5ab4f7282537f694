"""The one table of settings: what it holds together, and the text on hosts that is made from it."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from mpsctl.model import settings
from mpsctl.model.errors import BadValue
from mpsctl.model.instance import Instance
from mpsctl.model.instance_file import parse_conf, render
from mpsctl.model.setting import PREFIX, Setting
from mpsctl.model.settings import BY_KEY, BY_VARIABLE, SETTINGS

FIELDS = {one.name: one for one in fields(Instance) if one.name != "name"}
OF_THE_FILE = [one for one in SETTINGS if one.key]


def test_each_field_of_an_instance_is_one_key_of_its_file() -> None:
    assert sorted(str(one.field) for one in OF_THE_FILE) == sorted(FIELDS)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.variable)
def test_a_row_is_whole(setting: Setting) -> None:
    assert setting.variable.startswith(PREFIX)
    assert setting.meaning.endswith(".")
    assert "\n" not in setting.meaning + (setting.comment or "")
    if setting.key is None:
        assert (setting.section, setting.field, setting.comment, setting.per_instance) == (None, None, None, False)
    else:
        assert setting.section in settings.SECTIONS


def test_no_name_is_given_twice_not_even_a_former_one() -> None:
    former = [one for setting in SETTINGS for one in setting.formerly]
    variables = [one.variable for one in SETTINGS] + [one.variable for one in former]
    keys = [one.key for one in OF_THE_FILE] + [one.key for one in former if one.key]
    assert len(set(variables)) == len(variables)
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("setting", [one for one in OF_THE_FILE if one.null_refused], ids=lambda one: one.variable)
def test_what_an_absent_key_means_is_the_variables_default(setting: Setting) -> None:
    if setting.composed:
        assert FIELDS[str(setting.field)].default is MISSING
    else:
        assert FIELDS[str(setting.field)].default == setting.check(setting.default)


@pytest.mark.parametrize("setting", [one for one in SETTINGS if not one.composed], ids=lambda one: one.variable)
def test_a_default_is_a_good_value_and_null_is_one_only_where_it_has_a_meaning(setting: Setting) -> None:
    if setting.default is None:
        assert not setting.null_refused
    else:
        setting.check(setting.default)


def values(**given: object) -> dict[str, object]:
    """A value for each key: those given, else the variables' defaults."""
    composed = {"GPUs": "%i", "PipeDirectory": "/run/nvidia-mps/%i"}
    return {**{key: one.default for key, one in BY_KEY.items()}, **composed, **given}


DEFAULT_TEXT = """\
# Managed by mps-fleet: written by the role mps, changes by hand are lost.
# The desired state of one MPS instance; `mpsctl status` shows it beside what is in force.
# %i stands for the instance's name. A key that is absent is not managed.

[Instance]
# By index, UUID or PCI address; resolved to UUIDs at every start.
GPUs=%i
# What clients export as CUDA_MPS_PIPE_DIRECTORY.
PipeDirectory=/run/nvidia-mps/%i
ComputeMode=exclusive_process

[Limits]

[Clients]
# What becomes of a client that shook off its limit: report, refuse at the front door, terminate after the grace time.
LimitBypass=report
LimitBypassGraceSec=60
# What is said of ranks of a distributed training run among the clients: ignore, warn or fail.
DistributedJobs=warn
# How long a client waits at the front door while the daemon is down or drained; then CUDA error 805.
ClientWaitSec=60

[Daemon]
# What becomes of one that answers nothing at two looks of the health timer: report, or restart (clients are lost).
UnresponsiveDaemon=report

[Timeouts]
DriverTimeoutSec=90
StopTimeoutSec=20
"""


def test_the_text_on_a_host_by_default() -> None:
    assert render(values()) == DEFAULT_TEXT


def test_each_value_is_read_back_from_the_text_on_a_host() -> None:
    given: dict[str, object] = {
        "GPUs": "0 1",
        "PipeDirectory": "/run/mps/%i",
        "ComputeMode": "exclusive_process",
        "WhenDown": "prohibited",
        "MultiUser": True,
        "ServerUser": 0,
        "Group": "video",
        "DeviceMemoryLimit": "20%",
        "ActiveThreadPercentage": 12.5,
        "ClientPriority": 1,
        "ExpectedClients": 4,
        "OverExpected": "wait",
        "Shares": {"units": {"api@1.service": 4, "batch.slice": "2"}, "users": {"alice": 3, 1001: 1}, "each_unit": 0},
        "LimitBypass": "terminate",
        "LimitBypassGraceSec": 5,
        "DistributedJobs": "fail",
        "ClientWaitSec": 7,
        "FrontDoor": True,
        "UnresponsiveDaemon": "restart",
        "DriverTimeoutSec": 120,
        "StopTimeoutSec": 5,
    }
    assert set(given) == set(BY_KEY)
    text = render(given)
    read = parse_conf(text, "pair")
    for key, setting in BY_KEY.items():
        value = given[key] if setting.type == "dict" else str(given[key]).replace("%i", "pair")
        assert getattr(read, str(setting.field)) == setting.check(value), key
        unwritten = setting.default_unwritten and given[key] == setting.default
        assert unwritten or not setting.comment or f"# {setting.comment}\n{key}=" in text
        assert f"\n{key}=" in text or unwritten


@pytest.mark.parametrize("word", [False, "false", "no", "off"])
def test_a_word_that_means_no_writes_no_key(word: object) -> None:
    """`-e mps_multi_user=false` gives a text, and any text is true to Python."""
    assert render(values(MultiUser=word)) == DEFAULT_TEXT


@pytest.mark.parametrize("word", [True, "true", "yes", "on"])
def test_a_word_that_means_yes_writes_systemds(word: object) -> None:
    assert "\nMultiUser=yes\n" in render(values(MultiUser=word))


def test_an_instance_without_a_front_door_says_so_and_one_with_it_says_nothing() -> None:
    text = render(values(FrontDoor=False))
    assert "\nFrontDoor=no\n" in text
    assert not parse_conf(text, "0").front_door
    assert parse_conf(DEFAULT_TEXT, "0").front_door


def test_a_group_needs_the_front_door_that_judges_it() -> None:
    with pytest.raises(BadValue) as refusal:
        parse_conf(render(values(FrontDoor=False, Group="video")), "0")
    assert (refusal.value.key, refusal.value.variable) == ("Group", "mps_group")
    assert "\n" not in str(refusal.value)


OF_0_1_0 = """\
# Managed by mps-fleet: written by the role mps, changes by hand are lost.
[Instance]
GPUs=0
PipeDirectory=/run/nvidia-mps/%i
ComputeMode=exclusive_process

[Limits]
DeviceMemoryLimit=4G

[Clients]
EscapedClients=terminate
EscapeGraceSec=5

[Timeouts]
DriverTimeoutSec=90
StopTimeoutSec=20
"""
OF_0_2_0 = OF_0_1_0.replace("\n[Timeouts]", "DistributedJobs=warn\n\n[Daemon]\nUnresponsiveDaemon=report\n\n[Timeouts]")


@pytest.mark.parametrize("text", [OF_0_1_0, OF_0_2_0], ids=["0.1.0", "0.2.0"])
def test_a_file_of_an_earlier_release_is_read(text: str) -> None:
    read = parse_conf(text, "0")
    assert (read.limit_bypass, read.limit_bypass_grace_s, str(read.limit)) == ("terminate", 5, "4G")


def test_the_two_names_of_a_key_may_say_the_same_and_nothing_else() -> None:
    both = OF_0_1_0.replace("EscapeGraceSec=5", "EscapeGraceSec=5\nLimitBypassGraceSec=5")
    assert parse_conf(both, "0").limit_bypass_grace_s == 5
    with pytest.raises(BadValue, match="two names of one key") as refusal:
        parse_conf(both.replace("LimitBypassGraceSec=5", "LimitBypassGraceSec=6"), "0")
    assert (refusal.value.key, refusal.value.variable) == ("LimitBypassGraceSec", "mps_limit_bypass_grace_s")


def test_a_former_key_is_refused_outside_its_section_and_for_its_value() -> None:
    with pytest.raises(BadValue) as refusal:
        parse_conf("[Limits]\nEscapedClients=report\n", "0")
    assert refusal.value.remedy == "move it to [Clients]"
    with pytest.raises(BadValue) as refusal:
        parse_conf(OF_0_1_0.replace("=terminate", "=kill"), "0")
    assert (refusal.value.key, refusal.value.variable) == ("LimitBypass", "mps_limit_bypass")


def test_a_renamed_setting_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second rename needs nothing but a row: the reader asks the table alone."""
    monkeypatch.setitem(settings.BY_FORMER_KEY, "MaxMemory", BY_VARIABLE["mps_device_memory_limit"])
    text = OF_0_1_0.replace("DeviceMemoryLimit=4G", "MaxMemory=2G")
    assert str(parse_conf(text, "0").limit) == "2G"


@pytest.mark.parametrize("none", [None, {}, {"units": {}}, ""])
def test_no_shares_write_no_key(none: object) -> None:
    assert render(values(Shares=none)) == DEFAULT_TEXT
