"""Floor 5: what is done to a host, each act ending with a proof."""
