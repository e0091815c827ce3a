"""What `balance="auto"` stands for: costs and work found once, for all ranks."""
