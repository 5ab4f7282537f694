"""playbooks/limits.yml over twelve hosts, of which the fifth refuses."""

from __future__ import annotations

from tests.lab import rollout


def test_twelve_hosts_of_which_the_fifth_refuses_and_then_all_healthy() -> None:
    with rollout.fleet("soak", 4) as fleet:
        line = rollout.prove_a_rollout_that_stops(fleet, 5, 6, "-e", '{"mps_serial": [1, 4, "100%"]}')
        assert "soak-550-02, soak-550-03, soak-550-04, soak-555-01 and 3 more" in line
        fleet.converge()
        rollout.prove_a_healthy_rollout(fleet)
