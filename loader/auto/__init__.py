"""`balance="auto"`: costs and work are found once, for all ranks."""
