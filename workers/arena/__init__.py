"""Carries batches from worker to trainer through shared memory that is used again."""
