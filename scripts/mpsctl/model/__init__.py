"""Floor 1: what is desired, and the words for it: settings, quantities, GPUs, an instance, errors."""
