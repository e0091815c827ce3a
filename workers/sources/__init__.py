"""Sources of samples: their interface, file patterns, failures, randomness, registries."""
