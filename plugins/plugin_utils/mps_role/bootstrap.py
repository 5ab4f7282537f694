# Runs on the host, handed to its Python as a text: takes mpsctl from standard input, runs it, removes it.
import os
import shutil
import subprocess
import sys
import tempfile

left, base = int(sys.argv[1]), os.path.expanduser(sys.argv[2])
os.makedirs(base, 0o700, exist_ok=True)
place = tempfile.mkdtemp(prefix="ansible-tmp-mps-", dir=base)
try:
    program = os.path.join(place, "mpsctl")
    with open(program, "wb") as file:
        while left:
            data = os.read(0, min(left, 65536))
            if not data:
                sys.exit("the program did not arrive whole")
            file.write(data)
            left -= len(data)
    code = subprocess.call([sys.executable, "-IS", program, *sys.argv[3:]])
finally:
    shutil.rmtree(place, ignore_errors=True)
sys.exit(code)
