"""A step besides its tensors: StepInfo, loss scaling, ranks, skipped samples, errors."""
