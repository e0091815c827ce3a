"""JSONL and JSON files, with images and other media in files beside them, as a source."""
