"""Encodes samples as a header and a payload, and decodes them without a copy."""
