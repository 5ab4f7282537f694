"""Errors that a look in a process of its own hands back."""

from __future__ import annotations

import pickle

import pytest

from mpsctl.adapters.control_daemon import NotServed, Stopped, Unreachable
from mpsctl.adapters.nvml import Hanging, VersionMismatch
from mpsctl.model.errors import BadValue, MpsctlError, NoRight, NotAFile, NotInForce, NotReady, TooLarge, Unreadable
from mpsctl.model.peers import Peers

ERRORS = [
    BadValue("a", "b", "c", "Key", "mps_variable"),
    Unreadable("/etc/mps/x.conf", "is odd"),
    NotAFile("/etc/mps/x.conf", "a folder"),
    TooLarge("/etc/mps/x.conf", 7),
    NoRight("/etc/mps/x.conf"),
    NotReady("no driver"),
    NotInForce("no"),
    NotServed("held", Peers((4711,))),
    Stopped("stopped"),
    Unreachable("nobody"),
    Hanging("hangs"),
    VersionMismatch("two releases"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_comes_whole_from_another_process(error: MpsctlError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.__dict__, back.exit_code) == (str(error), error.__dict__, error.exit_code)
