"""Floor 3: what is done to a host."""
