"""Encoders in the bubbles, executed: planned, simulated and measured steps."""
