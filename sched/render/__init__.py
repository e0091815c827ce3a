"""Timelines as text, SVG, HTML page and Chrome trace."""
