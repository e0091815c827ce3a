"""What the forward of a Hugging Face model does between its modules."""
