"""Save and load a pipeline's model and optimizer, whatever layout they are loaded on."""
