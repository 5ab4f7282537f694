"""Floor 3: the wished state of this host's instances, matched with its devices, and what is remembered of each."""
