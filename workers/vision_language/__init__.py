"""The vision-language transform: turns conversations and images into tokens and tiles."""
