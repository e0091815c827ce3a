"""Planning: a window's costs to global batches. Pure functions, bit-identical on every machine."""
