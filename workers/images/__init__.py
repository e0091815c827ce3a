"""Reads image files: their size, and their pixels as upright RGB."""
