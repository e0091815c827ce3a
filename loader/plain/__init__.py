"""The loop without balancing: torch's own iterators, which count what they hand out."""
