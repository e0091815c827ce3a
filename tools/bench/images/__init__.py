"""Pipelines from shards with images to batches, and what they cost."""
