"""Connections of simulated processes: a network with faults, lent memory, and pulls."""
