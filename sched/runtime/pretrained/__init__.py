"""The weights of transformers' models, of which each rank makes, loads and saves its own part."""
