"""mpsctl: all that is known about running NVIDIA MPS on one host.

Four floors, each importing only those below it: ``values`` (quantities, the wished state of an
instance), ``outside`` (NVML, the control daemon, systemd, /proc, files), ``acts`` and ``proofs``
(what is done to a host, what is read back from it), ``cli``.
"""

__version__ = "0.1.0"
