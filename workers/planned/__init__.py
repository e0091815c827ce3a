"""Does the work of a planned run's workers: measures, loads and collates samples."""
