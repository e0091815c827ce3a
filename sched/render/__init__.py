"""Draw timelines as text, SVG, HTML page and Chrome trace."""
