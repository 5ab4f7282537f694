#!/usr/bin/python
"""The documentation of the action mps_report; its code is ../action/mps_report.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mps_report
short_description: Write one report on what mpsctl verify found on all hosts
description:
  - Takes the results of M(mps_host) with O(mps_host#module:phase=verify) of every host of the play and writes
    C(verify.json) and C(verify.html) on the controller. The page is one file and needs no network.
  - A host fails if one of its checks is critical, if it is unreachable or has no instance. Warnings fail nothing.
  - The task itself never fails; RV(failing) is for the task behind it.
options:
  results:
    description: The name of the variable that each host's result was registered in. Either it or O(ledger).
    type: str
  ledger:
    description: A directory on the controller with one file for each host that playbooks/reboot.yml has dealt with.
    type: path
  name:
    description: What the two files are called.
    type: str
    choices: [verify, reboot]
    default: verify
  directory:
    description: Where the two files go on the controller.
    type: path
    required: true
attributes:
  check_mode:
    description: Judges, and writes no file.
    support: full
  diff_mode:
    description: It changes nothing that could be shown.
    support: none
  idempotent:
    description: The report is written anew at every run.
    support: none
author:
  - mps-fleet
"""

EXAMPLES = r"""
- name: Report
  mps_report:
    results: __mps_verify
    directory: reports
  run_once: true
"""

RETURN = r"""
worst:
  description: The worst level of all hosts, ok, warning, critical or unknown.
  returned: always
  type: str
failing:
  description: The hosts that fail, each with what matters most of it.
  returned: always
  type: dict
page:
  description: Where the page lies on the controller.
  returned: always
  type: str
"""


def main() -> None:
    from ansible.module_utils.basic import AnsibleModule

    AnsibleModule({}).fail_json(msg="mps_report is an action and runs on the controller: use the role mps")


if __name__ == "__main__":
    main()
