"""What a reader of docs/drop-in.md has: a data set."""

dataset = list(range(64))
