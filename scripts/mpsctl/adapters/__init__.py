"""The outside world, a module each: NVML, the control daemon, systemd, /proc, files, the journal, locks."""
