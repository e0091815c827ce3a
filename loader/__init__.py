"""The side of the trainer: DataLoader, steps, loss scaling, samplers."""
