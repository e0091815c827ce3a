"""Mutants that no test can notice, by name, each with the reason."""

EQUIVALENTS: dict[str, str] = {}
