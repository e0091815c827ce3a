"""What Hugging Face models are told of packed samples, and whether they keep them apart then."""
