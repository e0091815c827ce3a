"""A whole cluster in one process: coordinator, workers, ranks; faults, time, network from a seed.

It runs the product's own decisions; `make bench NAME=faults` tries thousands of seeds.
"""
