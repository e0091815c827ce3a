"""Grouping: samples to microbatches within budgets."""
