r"""Makes the demo's own data set: questions about drawn pictures, as skewed as real ones.

A picture holds a few coloured shapes; the conversation asks for them, so there is something to
learn. Sides of pictures, pictures per sample and lengths of text are drawn from skewed
distributions (log-normal and geometric), which is what makes a plain loader unbalanced.

    {key}.json       {"conversations": [{"from": "human", "value": "<image>\n..."}, ...]}
    {key}.img0.jpg   {key}.img1.jpg ...
"""

import io
import json
import os
import random
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

COLOURS = ("red", "green", "blue", "yellow", "white", "black", "orange", "purple")
GROUNDS = ("beige", "gray", "skyblue", "pink", "khaki", "darkgreen", "navy", "maroon")
SHAPES = ("circle", "square", "triangle", "bar")
REMARKS = (
    "The {shape} in picture {number} is {colour}.",
    "Behind the {colour} {shape} the ground is {ground}.",
    "Picture {number} has a {ground} ground and a {shape} that is {colour}.",
    "There is a {colour} {shape} in picture {number}.",
)
MOST_IMAGES = 8
SIDES = (96, 1280)
# Raise it when what is drawn changes: an older data set in a cache is then no longer found.
VERSION = 1

Scene = tuple[str, list[tuple[str, str]]]


def ensure_demo_data(
    folder: Path | None = None, *, samples: int = 768, shards: int = 4,
    progress: Callable[[int], object] = lambda _: None,
) -> str:  # fmt: skip
    """Return the pattern of the data set's shards, making them first where they are missing.

    folder: the cache to keep it in; by default `counterpoise` in the user's cache folder. A data
    set appears there complete or not at all. progress is called with the number of samples
    written. Raises ValueError for fewer samples than shards, OSError if the cache cannot be
    written.
    """
    if not 1 <= shards <= samples:
        raise ValueError(f"{samples} samples cannot fill {shards} shards; ask for {shards} or more")
    cache = folder or cache_folder()
    place = cache / f"demo-v{VERSION}-{samples}-{shards}"
    if not place.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
        try:
            _write_shards(making, samples, shards, progress)
            _publish(making, place)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return str(place / "demo-*.tar")


def cache_folder() -> Path:
    """Return the folder of files that can be made again ($XDG_CACHE_HOME/counterpoise)."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "counterpoise"


def _publish(making: Path, place: Path) -> None:
    """Move a finished data set to its place; another process may have been faster."""
    try:
        making.rename(place)
    except OSError:
        if not place.is_dir():
            raise


def _write_shards(
    folder: Path, samples: int, shards: int, progress: Callable[[int], object]
) -> None:
    for shard in range(shards):
        with tarfile.open(folder / f"demo-{shard:05d}.tar", "w") as tar:
            for number in range(shard * samples // shards, (shard + 1) * samples // shards):
                for suffix, content in make_members(random.Random(f"0/{number}")):
                    member = tarfile.TarInfo(f"d{number:06d}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
                progress(number + 1)


def make_members(draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield (suffix, content) of one sample's members: its conversation, then its pictures."""
    scenes = [_scene(draw) for _ in range(_count_images(draw))]
    yield "json", json.dumps({"conversations": _conversation(draw, scenes)}).encode()
    for number, scene in enumerate(scenes):
        yield f"img{number}.jpg", _picture(draw, scene)


def _count_images(draw: random.Random) -> int:
    """Return 0 for a quarter of samples, 1 for half of them, else more, rarely many."""
    if draw.random() < 0.25:
        return 0
    count = 1
    while count < MOST_IMAGES and draw.random() < 0.35:
        count += 1
    return count


def _scene(draw: random.Random) -> Scene:
    drawings = [(draw.choice(COLOURS), draw.choice(SHAPES)) for _ in range(draw.randint(1, 3))]
    return draw.choice(GROUNDS), drawings


def _conversation(draw: random.Random, scenes: list[Scene]) -> list[dict[str, str]]:
    described = scenes or [_scene(draw)]
    answer = " ".join(_describe(n, scene) for n, scene in enumerate(described, start=1))
    question = "<image>\n" * len(scenes) + "What do you see?" if scenes else "Make up a picture."
    turns = [("human", question), ("gpt", answer)]
    remarks = min(60, round(draw.lognormvariate(0.6, 1.4)))
    if remarks:
        turns += [("human", "Say more."), ("gpt", _remark(draw, described, remarks))]
    return [{"from": speaker, "value": value} for speaker, value in turns]


def _describe(number: int, scene: Scene) -> str:
    drawings = " and ".join(f"a {colour} {shape}" for colour, shape in scene[1])
    return f"Picture {number}: {drawings} on {scene[0]}."


def _remark(draw: random.Random, scenes: list[Scene], count: int) -> str:
    sentences = []
    for _ in range(count):
        number = draw.randrange(len(scenes))
        ground, drawings = scenes[number]
        colour, shape = draw.choice(drawings)
        words: dict[str, Any] = {"ground": ground, "colour": colour, "shape": shape}
        sentences.append(draw.choice(REMARKS).format(number=number + 1, **words))
    return " ".join(sentences)


def _picture(draw: random.Random, scene: Scene) -> bytes:
    """Return a JPEG whose sides are skewed as photos' are: mostly small, some large, some long."""
    low, high = SIDES
    area, aspect = draw.lognormvariate(5.8, 0.6), draw.lognormvariate(0.0, 0.45)
    width, height = (
        int(min(high, max(low, area * stretch))) for stretch in (aspect**0.5, aspect**-0.5)
    )
    image = Image.new("RGB", (width, height), scene[0])
    pen = ImageDraw.Draw(image)
    for colour, shape in scene[1]:
        side = draw.uniform(0.2, 0.5) * min(width, height)
        x, y = draw.uniform(0, width - side), draw.uniform(0, height - side)
        _draw(pen, shape, colour, (x, y, x + side, y + side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _draw(
    pen: ImageDraw.ImageDraw, shape: str, colour: str, box: tuple[float, float, float, float]
) -> None:
    left, top, right, bottom = box
    if shape == "circle":
        pen.ellipse(box, fill=colour)
    elif shape == "triangle":
        pen.polygon([(left, bottom), (right, bottom), ((left + right) / 2, top)], fill=colour)
    elif shape == "bar":
        pen.rectangle((left, top, right, top + (bottom - top) / 4), fill=colour)
    else:
        pen.rectangle(box, fill=colour)
