"""Times and bytes from model shapes."""
