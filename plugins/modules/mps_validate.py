#!/usr/bin/python
"""The documentation of the action mps_validate; its code is ../action/mps_validate.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mps_validate
short_description: Refuse bad variables of the role mps, and build its program
description:
  - Checks the variables C(mps_*) of all hosts of the play at once, on the controller, with no connection to any host.
  - Fails with one line for each thing that is wrong, which names the hosts, the variable, what was found, what was
    expected and what to do.
  - Builds mpsctl into one file unless the file is there as it must be.
options: {}
attributes:
  check_mode:
    description: Can run in check mode; it changes nothing on any host.
    support: full
  diff_mode:
    description: It changes nothing that could be shown.
    support: none
  idempotent:
    description: The same variables give the same result.
    support: full
author:
  - mps-fleet
"""

EXAMPLES = r"""
- name: Refuse bad variables of any host
  mps_validate:
  register: __mps_validated
  run_once: true
"""

RETURN = r"""
program:
  description: The program that goes to the hosts.
  returned: success
  type: dict
  contains:
    path:
      description: Where it lies on the controller.
      type: str
    build:
      description: The id of its build.
      type: str
"""


def main() -> None:
    from ansible.module_utils.basic import AnsibleModule

    AnsibleModule({}).fail_json(msg="mps_validate is an action and runs on the controller: use the role mps")


if __name__ == "__main__":
    main()
