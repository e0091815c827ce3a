"""A simulated cluster in one process: a test instrument, used by `bench faults --simulate`."""
