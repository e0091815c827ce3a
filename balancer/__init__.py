"""Planning, wire format and coordinator: who computes which samples, when, and nothing else."""
