"""One run of an epoch: plan windows, lease samples to workers, find poison samples."""
