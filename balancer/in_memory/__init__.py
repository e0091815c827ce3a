"""Deals items that are in memory, such as rollouts, to ranks and microbatches: `cp.partition`."""
