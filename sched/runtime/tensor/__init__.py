"""Tensor-parallel layers whose collectives run beside their products."""
