"""Partition: microbatches or samples to data-parallel ranks."""
