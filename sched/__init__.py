"""Pipeline schedules: passes, programs, checking, simulation, transforms."""
