"""What a reader of docs/index.md has: a data set and a collate function."""

from tests.docs.readers.readme import collate, dataset

__all__ = ["collate", "dataset"]
