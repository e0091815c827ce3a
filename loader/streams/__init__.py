"""Balanced loops over streams: each rank packs its own stream, online, in its workers."""
