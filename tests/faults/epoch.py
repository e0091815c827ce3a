"""The size of the epoch that every run with faults trains: ranks, workers, steps, samples."""

RANKS, WORKERS = 2, 2
STEPS, SAMPLES_PER_STEP = 20, 8
