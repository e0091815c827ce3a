"""Transform programs: explicit communication, a generator, and what training makes of them."""
