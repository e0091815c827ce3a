"""Chat records to samples by processors of Hugging Face, with costs from sizes and texts."""
