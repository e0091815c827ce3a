"""What a reader of docs/from/mosaic.md has: an MDS folder."""

import tests.docs.readers.source_mds  # noqa: F401
