"""Facts about a step: StepInfo, loss scaling, ranks, skipped samples, errors."""
