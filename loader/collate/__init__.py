"""What a trainer does about batches: chooses fields, takes them apart, and compares layouts."""
