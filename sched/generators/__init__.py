"""Schedules as pure generators: GPipe, 1F1B, interleaved, zero bubble, V shapes."""
