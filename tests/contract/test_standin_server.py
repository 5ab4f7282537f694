"""The lab's stand-in for NVIDIA's MPS server, behind the control daemons 535, 550 and 555: what a lab host can show."""

from __future__ import annotations

from contextlib import suppress

import pytest

from mpsctl.adapters import hardware
from mpsctl.adapters.control_daemon import NotServed
from simulated import Simulation, eventually

NOBODY = 65534


def test_it_is_known_as_an_mps_server(simulation: Simulation) -> None:
    simulation.start()
    assert hardware.mps_program(simulation.ready()) == hardware.SERVER


def test_the_next_user_waits_until_the_last_client_of_the_former_has_gone(simulation: Simulation) -> None:
    """One user at a time: the daemon asks the server to end, and starts one for the next user (control daemons 535,
    550, 555; driver 580 likewise). 535 closes its connection to the server then and lists none of its clients."""
    simulation.start()
    first = simulation.client()
    assert first.outcome == "client"
    second = simulation.client(user=NOBODY)
    eventually(lambda: f"NEW CLIENT {second.pid} from user {NOBODY}" in simulation.log, "the second never came")
    assert first.process.poll() is None
    first.end()
    assert second.outcome == "client"
    assert simulation.clients() == [second.pid]


def test_terminate_client_ends_it_alone(simulation: Simulation) -> None:
    """It prints 0 (control daemons 535, 550, 555; driver 580 likewise), and the client's way to the server ends."""
    simulation.start()
    server = simulation.ready()
    going, staying = simulation.client(), simulation.client()
    assert (going.outcome, staying.outcome) == ("client", "client")
    assert simulation.ask(f"terminate_client {server} {going.pid}") == [["0"]]
    assert going.exit_code() == 7
    assert simulation.clients() == [staying.pid]


def test_a_server_that_does_not_answer_jams_its_daemon_until_it_does(simulation: Simulation, version: int) -> None:
    simulation.start()
    server = simulation.ready()
    simulation.order("answers=no")
    with pytest.raises(NotServed):
        simulation.ask(f"get_client_list {server}", deadline_s=0.5)
    stuck = simulation.client("--timeout", "0.5")
    assert stuck.outcome == "hang"
    assert stuck.exit_code() == 6
    simulation.order()
    eventually(lambda: simulation.client("--hold", "0", "--timeout", "5").outcome == "client", "still jammed")
    if version >= 550:
        assert simulation.ask(f"get_server_status {server}") == [["ACTIVE"]]


def test_a_server_that_is_to_say_so_is_in_fault_and_none_beside_it(simulation: Simulation, version: int) -> None:
    """FAULT is the daemon's own word for a server whose status is 0 (control daemons 550, 555; 535 has no status)."""
    simulation.start()
    server = simulation.ready()
    for fault, word in ((server + 1, "ACTIVE"), (server, "FAULT"), (None, "ACTIVE")):
        simulation.order(*([] if fault is None else [f"fault={fault}"]))
        said = simulation.ask(f"get_server_status {server}")
        assert said == [[word]] or (version < 550 and "Unknown command" in str(said))


def test_a_client_lost_in_its_start_jams_where_that_is_ordered(simulation: Simulation) -> None:
    """As NVIDIA's own server did on an H200 with driver 580: later clients hang, and the daemon with them."""
    simulation.order("jam=lost-client")
    simulation.start()
    server = simulation.ready()
    assert simulation.client("--hold", "0").outcome == "client"
    assert simulation.client("--kill-at", "second").exit_code() == -9
    eventually(lambda: f"stand-in server {server}: jammed" in simulation.log, "not jammed")
    assert simulation.client("--timeout", "0.5").outcome == "hang"


def test_a_late_server_lets_its_client_wait(simulation: Simulation, version: int) -> None:
    """INITIALIZING is the daemon's own word for a server that has not connected yet (control daemons 550, 555)."""
    simulation.order("start_delay_s=600")
    simulation.start()
    client = simulation.client("--timeout", "0.5")
    assert (client.outcome, client.said()["stage"]) == ("hang", "second")
    (server,) = simulation.servers()
    if version >= 550:
        assert simulation.ask(f"get_server_status {server}") == [["INITIALIZING"]]


def test_a_quit_takes_server_and_clients_with_it(simulation: Simulation) -> None:
    daemon = simulation.start()
    client = simulation.client()
    assert client.outcome == "client"
    with suppress(NotServed):
        # the session ends with the daemon, with or without a last word
        simulation.ask("quit -t 1")
    daemon.process.wait(timeout=30)
    assert client.exit_code() == 7


@pytest.mark.parametrize("order", ["", "answers=no", "start_delay_s=600"])
def test_a_server_never_outlives_a_daemon_that_was_killed(simulation: Simulation, order: str) -> None:
    simulation.order(order)
    daemon = simulation.start()
    simulation.ask("start_server -uid 0")
    eventually(simulation.servers, "no server was started")
    (server,) = simulation.servers()
    daemon.end()
    eventually(lambda: hardware.mps_program(server) is None, "the server lives on")


def test_a_multi_user_server_takes_everyone(simulation: Simulation, version: int) -> None:
    """`-multiuser-server` is known from 555 on; the server gets the same option and is root's (control daemon 555)."""
    if version < 555:
        daemon = simulation.start_unanswered("-multiuser-server")
        assert daemon.process.wait(timeout=30) != 0
        return
    simulation.start("-multiuser-server")
    clients = [simulation.client(user=user) for user in (0, NOBODY)]
    assert [client.outcome for client in clients] == ["client", "client"]
    assert sorted(simulation.clients()) == sorted(client.pid for client in clients)
