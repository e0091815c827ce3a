"""The balanced loader: from arguments to a plan, and an epoch's microbatches in order."""
