#!/usr/bin/python
"""The documentation of the action mps_reboot; its code is ../action/mps_reboot.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mps_reboot
short_description: Reboot a host, and say meanwhile who is not back yet
description:
  - Is M(ansible.builtin.reboot). While hosts are waited for it says on the controller which are not back, every half
    minute in one line for all of them.
options:
  reboot_timeout:
    description: How long the host may take to answer again, in seconds.
    type: int
    default: 600
attributes:
  check_mode:
    description: Says that the host would be rebooted.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: Each run reboots.
    support: none
author:
  - mps-fleet
"""

EXAMPLES = r"""
- name: Reboot
  mps_reboot:
    reboot_timeout: 600
"""

RETURN = r"""
rebooted:
  description: Whether the host was rebooted.
  returned: always
  type: bool
elapsed:
  description: How long that took, in seconds.
  returned: always
  type: int
mps_run:
  description: What was done, as data; the summary of a run is made of it.
  returned: always
  type: dict
"""


def main() -> None:
    from ansible.module_utils.basic import AnsibleModule

    AnsibleModule({}, bypass_checks=True).fail_json(
        msg="mps_reboot is an action and runs on the controller: use playbooks/reboot.yml"
    )


if __name__ == "__main__":
    main()
