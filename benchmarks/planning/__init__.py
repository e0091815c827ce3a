"""Benchmarks of planning: orders, steps and whole epochs."""
