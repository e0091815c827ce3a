"""Choosing the encoders' parallelism beside the language model's."""
