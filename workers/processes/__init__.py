"""Pools of worker processes: fork server, supervisor, pool."""
