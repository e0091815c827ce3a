"""`counterpoise bench`: measures this project against baselines, interleaved in one run."""
