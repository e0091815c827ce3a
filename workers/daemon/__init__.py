"""The worker's loop and its handlers: probe, decode, fetch."""
