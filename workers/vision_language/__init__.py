"""The vision-language transform: turns conversations and images into tokens and tiles."""

from .transform import VisionLanguage

__all__ = ["VisionLanguage"]
