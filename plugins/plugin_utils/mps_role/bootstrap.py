# Runs on the host, handed to its Python as a text: takes mpsctl from standard input into memory, and becomes it.
# No file lies on the host meanwhile: nobody else can come to it, and nothing stays of a run that is killed.
# MPSCTL_TRANSPORT names the folder where releases before this one put it.
import os
import select
import sys

INPUT_S = 60
_NOT_TO_BE_EXECUTED = 8  # MFD_NOEXEC_SEAL: a host may ask for it (vm.memfd_noexec), and before Linux 6.3 none knows it


def _memory() -> int:
    create = getattr(os, "memfd_create", None)  # a Python that was built for an old C library has none
    if create is None:
        return os.open("/run", os.O_TMPFILE | os.O_RDWR, 0o600)  # in memory as well, and without a name
    try:
        return int(create("mpsctl", _NOT_TO_BE_EXECUTED))
    except OSError:
        return int(create("mpsctl", 0))


left, program = int(sys.argv[1]), _memory()
while left:
    if not select.select([0], [], [], INPUT_S)[0]:
        sys.exit(f"the program stopped arriving {INPUT_S} s ago")
    data = os.read(0, min(left, 65536))
    if not data:
        sys.exit("the program did not arrive whole")
    left -= len(data)
    while data:
        data = data[os.write(program, data) :]
os.set_inheritable(program, True)
os.environ["MPSCTL_TRANSPORT"] = os.path.expanduser(sys.argv[2])
os.execv(sys.executable, [sys.executable, "-IS", f"/proc/self/fd/{program}", *sys.argv[3:]])
