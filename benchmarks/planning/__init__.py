"""Benchmarks of planning: orders, partitions, steps and whole epochs."""
