"""Floor 4: what is read back from a host. Changes nothing."""
