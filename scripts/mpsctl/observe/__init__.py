"""Floor 4: typed facts of the host, its daemons, instances, servers, clients and processes."""
