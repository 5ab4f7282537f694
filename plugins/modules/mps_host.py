#!/usr/bin/python
"""The documentation of the action mps_host; its code is ../action/mps_host.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mps_host
short_description: Bring a host's MPS instances into the desired state
description:
  - Renders the unit and the instances' files from the variables of the role mps and hands them to
    C(mpsctl reconcile) on the host, on standard input. An operator can run the very same command there.
  - Where the host has no mpsctl, or one of another build, the program travels with the request and runs from
    memory, in no folder of the host; outside check mode it then installs itself.
options:
  phase:
    description:
      - V(look) only looks and says in RV(needed) whether there is something to do.
      - V(converge) brings the host into the desired state; in check mode it looks as well.
      - V(remove) takes everything of the project off the host; in check mode it says what would go.
      - V(verify) runs C(mpsctl verify) and hands back what it found; no finding fails the task.
    type: str
    choices: [look, converge, remove, verify]
    required: true
  program:
    description: The built program on the controller.
    type: path
    required: true
  build:
    description: The id of its build.
    type: str
    required: true
  program_absent:
    description: Whether it is known that the host lacks this build, which saves asking.
    type: bool
    default: false
  probe_client:
    description: Whether V(verify) also sends probe clients, which are real CUDA clients.
    type: bool
    default: false
  atomic:
    description:
      - Lets changed limits alone through, which a live reload brings about; anything more is refused.
      - Where they do not come into force, mpsctl puts the host back to the limits that it had, and the task fails.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says what would be done and changes nothing.
    support: full
  diff_mode:
    description: Shows files and states before and after.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
notes:
  - Needs privileges on the host (C(become)), and a Python of 3.9 or newer there.
  - The request goes through standard input, so a become method that needs a terminal, such as su, cannot be used.
author:
  - mps-fleet
"""

EXAMPLES = r"""
- name: Look at the host
  mps_host:
    phase: look
    program: "{{ __mps_validated.program.path }}"
    build: "{{ __mps_validated.program.build }}"
  register: __mps_look
"""

RETURN = r"""
needed:
  description: Whether there is something to do, if only a restart that waits for clients.
  returned: success
  type: bool
refused:
  description: The line that says what this host cannot do, or null. Nothing was changed then.
  returned: always
  type: str
does_not_fit:
  description: Whether RV(refused) is a matter of this host's GPUs or its driver alone, which others may do.
  returned: with RV(phase=look)
  type: bool
missing:
  description: What of NVIDIA's package is not installed, as what and message, or null.
  returned: success
  type: dict
actions:
  description: What was done, or would be.
  returned: success
  type: list
  elements: str
steps:
  description:
    - The same as data, one for each line of RV(actions) that mpsctl itself is responsible for, with its kind, its
      instance, whether it is live, and whether it ends clients.
  returned: success
  type: list
  elements: dict
pending:
  description: Instances whose restart waits for their clients to leave, with these clients.
  returned: success
  type: list
  elements: dict
waiting:
  description: A line for each of these, as people are told.
  returned: success
  type: list
  elements: str
instances:
  description: Each instance as read back from the host, with its word and the checks that are not ok.
  returned: success
  type: dict
host:
  description: Distribution and driver of the host.
  returned: success
  type: dict
put_back:
  description: Whether a host is proven to have its former limits again.
  returned: when an atomic change failed
  type: bool
program_sent:
  description: Whether the program travelled with the request.
  returned: success
  type: bool
"""


def main() -> None:
    from ansible.module_utils.basic import AnsibleModule

    AnsibleModule({}, bypass_checks=True).fail_json(
        msg="mps_host is an action and runs on the controller: use the role mps"
    )


if __name__ == "__main__":
    main()
