"""Published methods that nobody would train with, restated to be compared with."""
