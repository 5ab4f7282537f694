"""What contexts cost, and whether sharing a GPU pays."""
