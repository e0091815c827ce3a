"""Encoder work in the bubbles of a language model's pipeline (Optimus, 2025)."""
