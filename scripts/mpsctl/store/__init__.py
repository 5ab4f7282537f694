"""Floor 3: what is remembered on this host, and where."""
