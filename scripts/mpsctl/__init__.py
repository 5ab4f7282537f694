"""mpsctl: all that is known about running NVIDIA MPS on one host.

Each package imports only those before it: ``model`` (what is desired, and the words for it), ``adapters`` (NVML, the
control daemon, systemd, /proc, files), ``store`` (what is remembered on this host), ``observe`` (facts), ``checks``
(judgements of facts), ``causes`` (why, and what to do), ``lifecycle`` (what happens to one instance), ``converge``
(what happens to a host), ``measuring`` (what contexts cost, whether sharing pays), ``cli``.
"""

__version__ = "0.2.0"
