"""Floor 9: what contexts cost, and whether sharing a GPU pays."""
