"""Carries payloads of balanced loops from workers to ranks that pull them, over the network."""
