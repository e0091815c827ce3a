"""Starts and ends pools of worker processes: fork server, supervisor, pool."""
