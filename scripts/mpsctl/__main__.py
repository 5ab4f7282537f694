"""Run the program from its sources: ``python3 -m mpsctl``."""

import sys

from mpsctl.cli.main import run

run(sys.argv[1:])
