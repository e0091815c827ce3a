"""Serves frames of what a worker keeps to trainers that pull them, over the network."""
