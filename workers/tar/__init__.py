"""WebDataset tar shards as a map-style dataset, with an index and a cost cache."""
