"""mpsctl: all that is known about running NVIDIA MPS on one host.

Six floors, each importing only those below it: ``values`` (quantities, GPUs, an instance), ``outside``
(NVML, the control daemon, systemd, /proc, files), ``state`` (what is desired of this host and what is
remembered), ``proofs`` (what is read back), ``acts`` (what is done), ``cli``.
"""

__version__ = "0.2.0"
