"""What a reader of docs/guides/source-energon.md has: prepared folders, and a metadataset."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import yaml
from PIL import Image

from tests.workers.prepared import prepare

_MAP = {"image": "jpg", "question": "json[turns][0]", "answer": "json[turns][1]"}
_VQA = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "VQASample"},
    "field_map": _MAP,
}


def _write(path: Path, count: int) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (30, 20), "red").save(picture, "JPEG")
    text = json.dumps({"turns": ["What is it?", "Red."]}).encode()
    with tarfile.open(path, "w") as tar:
        for number in range(count):
            for name, content in (("jpg", picture.getvalue()), ("json", text)):
                member = tarfile.TarInfo(f"{number}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


_DATA = Path("data")
if not _DATA.exists():
    for _name in ("coco", "vqa"):
        (_DATA / _name).mkdir(parents=True)
    shutil.copy(next(Path("shards").glob("*.tar")), _DATA / "coco/0.tar")
    with tarfile.open(_DATA / "coco/0.tar") as _tar:
        _count = len({name.partition(".")[0] for name in _tar.getnames()})
    prepare(_DATA / "coco", {"0.tar": _count}, {"train": ["0.tar"]})
    _write(_DATA / "vqa/0.tar", 30)
    _write(_DATA / "vqa/1.tar", 10)
    prepare(_DATA / "vqa", {"0.tar": 30, "1.tar": 10}, {"train": ["0.tar"], "val": ["1.tar"]}, _VQA)
    shutil.copytree(_DATA / "vqa", _DATA / "mixed/coco")
    _blend = [{"path": "vqa", "weight": 3}, {"path": "mixed/coco", "split_part": "val"}]
    _meta = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    (_DATA / "mix.yaml").write_text(yaml.dump({**_meta, "splits": {"train": {"blend": _blend}}}))
