"""What is desired, and the words for it: settings, quantities, GPUs, an instance, errors."""
