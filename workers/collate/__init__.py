"""Collates samples to batches by a layout, wherever that is done: in workers, or in a trainer."""
