"""The local loop: torch's iterator over a planned order, on one host or many."""
