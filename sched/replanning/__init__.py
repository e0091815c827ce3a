"""Plan a pipeline again when its steps take other times than planned. No clock, and no torch."""
