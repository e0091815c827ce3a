"""What a reader of docs/from/energon.md has: prepared folders, and a metadataset."""

import tests.docs.readers.source_energon  # noqa: F401
