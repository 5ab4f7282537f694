#!/usr/bin/python
"""The documentation of the action mps_drain; its code is ../action/mps_drain.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mps_drain
short_description: Drain a host's MPS instances, or let clients in again
description:
  - Runs C(mpsctl drain) on the host, in short waits one behind the other, until no client is left or the time is over,
    or C(mpsctl undrain).
  - While hosts are waited for it says on the controller who is left, every half minute in a few lines for all of them.
options:
  phase:
    description: What to do.
    type: str
    choices: [drain, undrain]
    required: true
  program:
    description: Where mpsctl lies on the host.
    type: path
    required: true
  timeout_s:
    description: How long connected clients are waited for, in seconds.
    type: str
    default: "300"
  reason:
    description: What whoever finds an instance drained is told.
    type: str
  refuse:
    description: Whether clients that come are refused at once, and do not wait.
    type: bool
    default: false
  terminate:
    description: Whether those that are left at the end are ended.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says what would be done, and asks no host.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: A drained instance stays drained.
    support: full
author:
  - mps-fleet
"""

EXAMPLES = r"""
- name: Drain its instances
  mps_drain:
    phase: drain
    program: /usr/local/bin/mpsctl
    timeout_s: 600
"""

RETURN = r"""
instances:
  description: Of a drain, what became of each instance, as C(mpsctl drain --json) has it.
  returned: success
  type: dict
was_drained:
  description: Of an undrain, the instances that were drained.
  returned: success
  type: list
  elements: str
mps_run:
  description: What was done, as data; the summary of a run is made of it.
  returned: success
  type: dict
"""


def main() -> None:
    from ansible.module_utils.basic import AnsibleModule

    AnsibleModule({}, bypass_checks=True).fail_json(
        msg="mps_drain is an action and runs on the controller: use playbooks/drain.yml"
    )


if __name__ == "__main__":
    main()
