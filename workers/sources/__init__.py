"""What every source shares: its interface, file patterns, errors, randomness, fingerprints."""
