"""`counterpoise bench`: ours against baselines, interleaved in one run."""
