"""Floor 2: the outside world, one room for each thing that is talked to."""
