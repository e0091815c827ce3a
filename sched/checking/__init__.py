"""Prove that programs are complete, ordered, and free of deadlock."""

from .checker import check, problems

__all__ = ["check", "problems"]
