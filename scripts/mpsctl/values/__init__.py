"""Floor 1: plain values. Nothing here touches the host."""
