"""Grouping: collects samples into microbatches within budgets."""
