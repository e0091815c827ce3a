"""The loaders that `make bench NAME=matrix` compares, one a file: each has `open_loader(cell)`.

What it returns gives a pass' batches to each `iter()`, with the workers of the passes before, and
has `close()`. Batches are tensors of bytes of the shape (batch size, bytes of a sample).
"""
