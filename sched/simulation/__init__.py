"""The simulator: a program and its costs to a timeline, in integer nanoseconds."""
