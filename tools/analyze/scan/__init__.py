"""Scanning a data set for costs: tasks, rows, tables, on cores or Ray."""
