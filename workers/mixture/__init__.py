"""Mixtures: several sources as one, in exact proportions."""
