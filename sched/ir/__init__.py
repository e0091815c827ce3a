"""Describe schedules: passes, kinds, programs, their dependency graph, and the registry.

The public names are those of `counterpoise.sched`.
"""
