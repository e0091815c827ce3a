"""Partition: assigns microbatches, or samples, to data-parallel ranks."""
