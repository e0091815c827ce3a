"""Simulate a program with its costs: a timeline in integer nanoseconds."""
