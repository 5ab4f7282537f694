"""What is remembered on this host, and where."""
