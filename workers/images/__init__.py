"""Image files to sizes and upright RGB pixels."""
