"""Wraps what the workers of a plain loop read: leaves bad samples out, says how far each is."""
