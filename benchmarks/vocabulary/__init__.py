"""Benchmarks of vocabulary parallelism: schedules simulated, layers measured."""
