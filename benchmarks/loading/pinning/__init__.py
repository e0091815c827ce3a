"""Batches on their way to a GPU, by how they are pinned."""
