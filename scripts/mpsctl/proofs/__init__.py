"""Floor 3: what is read back from a host."""
