"""Batches in the trainer: chooses their fields, takes them apart, and compares layouts."""
