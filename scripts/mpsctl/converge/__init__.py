"""Brings a host into the desired state, and takes everything off it again: a plan is one list of steps."""
