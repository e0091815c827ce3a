"""Carries payloads of balanced loops from workers to ranks through memory that workers lend."""
