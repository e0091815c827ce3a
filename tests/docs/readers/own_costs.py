"""What a reader of own-costs.md has: a data set, and its lengths."""

dataset = ["a short text", "a text that is a little longer", ""]
lengths = [len(text) for text in dataset]
