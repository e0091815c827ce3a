"""What a reader of batch-sampler.md has: a data set and its costs."""

from tests.docs.readers.planning import dataset, tiles, tokens

__all__ = ["dataset", "tiles", "tokens"]
