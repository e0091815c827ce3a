"""Filled schedules as programs, timelines and replays; where the bubbles are, and drift."""
