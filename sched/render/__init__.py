"""Draw timelines as text, SVG and Chrome trace."""
