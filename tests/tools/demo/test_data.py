"""The demo's data set: the same from the same seed, whole or absent, and skewed."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from counterpoise.tools.demo.data import cache_folder, ensure_demo_data
from counterpoise.tools.demo.transform import MOST_TOKENS, ClippedBytes


def digests(pattern: str) -> list[str]:
    shards = sorted(Path(pattern).parent.glob("demo-*.tar"))
    return [hashlib.sha256(shard.read_bytes()).hexdigest() for shard in shards]


def members(pattern: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for shard in sorted(Path(pattern).parent.glob("demo-*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                found[member.name] = content.read()
    return found


def test_the_same_shards_are_made_again(tmp_path: Path) -> None:
    first, again = (
        digests(ensure_demo_data(tmp_path / place, samples=12, shards=2)) for place in ("a", "b")
    )
    assert len(first) == 2
    assert first == again


def test_what_is_there_is_used_again(tmp_path: Path) -> None:
    written: list[int] = []
    for _ in range(2):
        ensure_demo_data(tmp_path, samples=6, shards=2, progress=written.append)
    assert written == [1, 2, 3, 4, 5, 6]


def test_a_broken_off_data_set_is_not_left_behind(tmp_path: Path) -> None:
    def stop(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_demo_data(tmp_path, samples=6, shards=2, progress=stop)
    assert list(tmp_path.iterdir()) == []
    assert len(digests(ensure_demo_data(tmp_path, samples=6, shards=2))) == 2


def test_every_image_a_conversation_names_is_there(tmp_path: Path) -> None:
    found = members(ensure_demo_data(tmp_path, samples=40, shards=1))
    texts = {name: json.loads(data) for name, data in found.items() if name.endswith(".json")}
    assert len(texts) == 40
    for name, text in texts.items():
        asked = sum(turn["value"].count("<image>") for turn in text["conversations"])
        images = [n for n in found if n.startswith(name.removesuffix("json") + "img")]
        assert len(images) == asked


def test_sizes_and_texts_are_skewed(tmp_path: Path) -> None:
    found = members(ensure_demo_data(tmp_path, samples=200, shards=1))
    texts = sorted(len(data) for name, data in found.items() if name.endswith(".json"))
    pixels = []
    for name, data in found.items():
        if name.endswith(".jpg"):
            with Image.open(io.BytesIO(data)) as image:
                pixels.append(image.width * image.height)
    assert max(texts) > 3 * texts[len(texts) // 2]
    assert max(pixels) > 3 * sorted(pixels)[len(pixels) // 2]


def test_fewer_samples_than_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 samples cannot fill 4 shards"):
        ensure_demo_data(tmp_path, samples=2)


def test_the_cache_is_where_the_user_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "counterpoise"


@pytest.mark.parametrize("text", ["", "short", "long " * 90, "naïve 漢字 🙂" * 30])
def test_no_text_is_longer_than_the_most(text: str) -> None:
    tokens = ClippedBytes()(text)
    assert tokens == list(text.encode()[:MOST_TOKENS]) == ClippedBytes().array(text).tolist()
