"""Published methods, restated for comparison only."""
