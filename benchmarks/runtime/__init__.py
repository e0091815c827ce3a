"""Benchmarks of the pipeline runtime: against torch's, and against the simulator."""
