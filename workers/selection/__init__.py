"""Selections: some of a source's samples, by rule, as a source."""
