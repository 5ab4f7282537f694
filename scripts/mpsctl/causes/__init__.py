"""Floor 6: the catalogue of causes, and readers of what people bring."""
