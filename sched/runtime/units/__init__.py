"""Units: encoders and language model on ranks of their own, with their own parallelism."""
