"""What a reader of source-jsonl.md has: LLaVA's form, a JSON array and a folder of images."""

import json
from pathlib import Path

from PIL import Image

if not Path("llava").exists():
    Path("llava/images/coco").mkdir(parents=True)
    _records = []
    for n in range(48):
        Image.new("RGB", (30 + n, 20), "red").save(f"llava/images/coco/{n}.jpg")
        _said = [
            {"from": "human", "value": "<image>\nWhat is it?"},
            {"from": "gpt", "value": "Red"},
        ]
        _about = {"id": f"{33471 + n:012}", "image": f"coco/{n}.jpg"}
        _records.append({**_about, "conversations": _said})
    Path("llava/chat.json").write_text(json.dumps(_records))
