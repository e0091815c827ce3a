"""Everything that waits for a GPU, measured in one go on whatever devices are there."""
