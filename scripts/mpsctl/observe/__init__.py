"""Typed facts of the host, its daemons, instances, servers, clients and processes. Nothing is judged here."""
