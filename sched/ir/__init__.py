"""The language of schedules: passes, kinds, programs, their graph, and the registry."""
