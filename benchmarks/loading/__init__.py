"""Benchmarks of loaders in a trainer: the first batch, and samples per second."""
