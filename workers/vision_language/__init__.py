"""The vision-language transform: conversations and images to tokens and tiles."""

from .transform import VisionLanguage

__all__ = ["VisionLanguage"]
