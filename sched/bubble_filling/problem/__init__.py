"""The filling problem: gaps, kernels, encoder pipelines, and named setups."""
