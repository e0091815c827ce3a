"""Draw timelines as text, SVG, HTML page and Chrome trace."""

from .html import render_html
from .summary import BYTES, MemoryUnit
from .svg import render_svg
from .text import render_text
from .trace import render_trace

__all__ = ["BYTES", "MemoryUnit", "render_html", "render_svg", "render_text", "render_trace"]
