#!/usr/bin/python
"""The documentation of the action mps_remote_tmp; its code is ../action/mps_remote_tmp.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mps_remote_tmp
short_description: Refuse to run modules as root from a folder that others can change
description:
  - Ansible puts each module into C(remote_tmp) on the host before it is run, unless pipelining is in effect. Whoever
    owns that folder, or one on the way to it, could put another program in its place, which root would run.
  - Fails where that is so, before any module went there. It runs no module itself.
  - Does nothing where pipelining is in effect, as by this project's ansible.cfg.
options: {}
attributes:
  check_mode:
    description: Looks in check mode as well, since modules run there too.
    support: full
  diff_mode:
    description: It changes nothing that could be shown.
    support: none
  idempotent:
    description: It changes nothing.
    support: full
author:
  - mps-fleet
"""

EXAMPLES = r"""
- name: Refuse a shared folder for modules
  mps_remote_tmp:
  timeout: 60
"""

RETURN = r""" # """


def main() -> None:
    from ansible.module_utils.basic import AnsibleModule

    AnsibleModule({}).fail_json(msg="mps_remote_tmp is an action and runs no module: is action_plugins set?")


if __name__ == "__main__":
    main()
