"""What a reader of docs/from/drop-in.md has: a data set."""

dataset = list(range(64))
