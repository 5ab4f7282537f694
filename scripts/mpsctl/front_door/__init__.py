"""The front door: the socket that clients find, and who passes through it to NVIDIA's control daemon."""
