"""Floor 2: the outside world, a room each: NVML, the control daemon, systemd, /proc, files, the journal, locks."""
