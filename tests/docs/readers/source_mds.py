"""What a reader of docs/guides/source-mds.md has: an MDS folder."""

import io
import json
from pathlib import Path

from PIL import Image

from tests.workers.prepared import write_mds

_picture = io.BytesIO()
Image.new("RGB", (30, 20), "red").save(_picture, "JPEG")
_samples = [
    {"image": _picture.getvalue(), "json": json.dumps({"caption": "red " * (n % 9 + 1)}).encode()}
    for n in range(48)
]
if not Path("data").exists():
    Path("data").mkdir()
    write_mds(Path("data/mds"), {"image": "jpeg", "json": "json"}, _samples)
