"""What a reader of topology.md has: a data set."""

dataset = ["text " * (number % 9 + 1) for number in range(32)]
