"""Move tensors between the ranks of a pipeline."""
