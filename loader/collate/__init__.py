"""Collates samples to batches: layouts, their fields, and reusable buffers."""
