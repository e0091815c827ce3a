"""What a worker of a planned run does: it measures, loads and collates samples."""
