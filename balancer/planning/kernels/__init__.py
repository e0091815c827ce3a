"""The numba loops of planning; importing a module of this folder imports numba."""
