"""Console output, signals and log messages, shared by all commands."""
