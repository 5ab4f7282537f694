"""Floor 8: bringing a host into the desired state, and taking everything off it again."""
