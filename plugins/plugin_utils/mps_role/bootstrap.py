# Runs on the host, handed to its Python as a text: takes mpsctl from standard input and runs it. The program lies in
# memory that only this process and its children have: in no folder, so nobody can put another in its place, and
# nothing of it stays, however this ends.
import os
import subprocess
import sys

_NOT_TO_BE_EXECUTED = 8  # MFD_NOEXEC_SEAL: a host may ask for it (vm.memfd_noexec), and before Linux 6.3 none knows it


def _memory() -> int:
    try:
        return os.memfd_create("mpsctl", _NOT_TO_BE_EXECUTED)
    except OSError:
        return os.memfd_create("mpsctl", 0)


left, program = int(sys.argv[1]), _memory()
while left:
    data = os.read(0, min(left, 65536))
    if not data:
        sys.exit("the program did not arrive whole")
    left -= len(data)
    while data:
        data = data[os.write(program, data) :]
words = [sys.executable, "-IS", f"/proc/self/fd/{program}", *sys.argv[2:]]
sys.exit(subprocess.call(words, pass_fds=[program]))
