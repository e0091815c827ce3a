"""Reads the inputs of commands: cost tables, JSON files, models, programs and cost profiles."""
