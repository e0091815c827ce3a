"""What a reader of transforms.md has: a shard with an image and its caption."""

import io
import tarfile

from PIL import Image

_picture = io.BytesIO()
Image.new("RGB", (30, 20), "red").save(_picture, "JPEG")
with tarfile.open("captions.tar", "w") as _tar:
    for _name, _content in (("jpg", _picture.getvalue()), ("json", b'{"caption": "red"}')):
        _info = tarfile.TarInfo(f"0.{_name}")
        _info.size = len(_content)
        _tar.addfile(_info, io.BytesIO(_content))
