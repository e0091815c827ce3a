"""What connects simulated processes: a network with faults, lent memory, and pulls."""
