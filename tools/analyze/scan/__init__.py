"""Scans a data set for costs: sources to tasks, tasks to rows, on cores or on Ray."""
