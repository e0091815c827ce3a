"""MosaicML streaming's MDS shards as a map-style dataset."""
