"""Keeps what signals' handlers raise from losing memory and descriptors."""
