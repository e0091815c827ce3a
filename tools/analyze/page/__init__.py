"""The analysis as one self-contained HTML page."""
