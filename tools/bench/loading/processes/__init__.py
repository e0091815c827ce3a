"""Processes that are measured: each system in its own, and what all below it use."""
