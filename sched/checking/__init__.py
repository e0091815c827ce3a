"""Proofs that a program is complete, ordered, and free of deadlock."""
