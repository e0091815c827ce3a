"""A planned run: an epoch from its order to microbatches handed out, wherever these are loaded."""
