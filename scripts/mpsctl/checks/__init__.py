"""Floor 5: each judgement once."""
