"""Arguments of Hugging Face models for packed samples, and proofs that they keep them apart."""
