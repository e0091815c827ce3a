"""A planned run: an epoch from its order to microbatches handed out, whoever loads them."""
