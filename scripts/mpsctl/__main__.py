"""Run the program from its sources: ``python3 -m mpsctl``."""

import sys

from mpsctl.cli.main import main

sys.exit(main(sys.argv[1:]))
