"""`counterpoise schedule`: show, check, simulate, compare, fill."""
