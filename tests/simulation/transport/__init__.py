"""Connections of simulated processes: a network with faults, and pulls."""
