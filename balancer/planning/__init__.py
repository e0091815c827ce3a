"""Planning: turns a window's sample costs into global batches, the same on every machine."""
