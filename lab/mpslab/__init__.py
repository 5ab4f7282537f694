"""The lab: roots, layers, hosts and what boots them. ``cli`` is the door, ``fleet`` what its verbs do."""
