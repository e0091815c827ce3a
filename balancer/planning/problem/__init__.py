"""The planning problem: configuration, window, costs as integers, shuffle, metrics."""
