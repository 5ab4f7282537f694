"""From symptoms to causes: what an error, a log, a process, a file of a container or unit, or the host itself tells."""
