"""What a reader of own-source.md has: captions in a CSV file, and their image."""

from pathlib import Path

from PIL import Image

if not Path("captions").exists():
    Path("captions").mkdir()
    Image.new("RGB", (30, 20), "red").save("captions/a.jpg")
    Path("captions/all.csv").write_text("image,caption\na.jpg,red\n")
