"""Work, times and memory of layers and layouts, by hand."""
