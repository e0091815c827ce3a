"""The ready vision-language transform: a raw sample to tiles and tokens, for InternVL-like models.

Probing and decoding share everything but the pixels: the same header gives the same grid, the same
text the same tokens. So a probed cost is what the decoded sample turns out to have, exactly.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .conversation import turns
from .image import MAX_PIXELS, ImageError, OpenedImage, is_image, open_image
from .registry import name_of, spec_of
from .source import Probe, SampleError
from .tiles import cut, grid, tile_count
from .token_layout import IGNORED, Ids, Markup, Tokenizer, lay_out
from .tokenizer import ByteTokenizer
from .versions import digest

Raw = Mapping[str, Any]
# A tokenizer that cannot be named is told from others by what it makes of this.
CANARY = "The quick brown fox, 12.5% of it — naïve Ωmega 漢字 🙂\n\tjumps_over('lazy') dogs."


@dataclass(frozen=True, slots=True)
class _Layout:
    """All of a sample but its pixels."""

    key: str
    names: tuple[str, ...]
    images: tuple[OpenedImage, ...]
    grids: tuple[tuple[int, int], ...]
    tiles: tuple[int, ...]
    input_ids: Ids
    labels: Ids


class VisionLanguage:
    """Raw samples of any WebDataset layout with images and text to training samples.

    Fields: `pixel_values` uint8 (tiles, 3, tile_size, tile_size), `tiles_per_image` int32
    (images,), `input_ids` and `labels` int32 (tokens,). Labels are -100 but for what the assistant
    says and for documents. Each image takes tiles x tokens_per_tile tokens `image_token_id`.

    `tokenizer` is any callable from text to ids (default: bytes). Ids that are not given are taken
    from its attributes (`image_id`, `bos_id`, `eos_id`, `human_id`, `assistant_id`) where it has
    them; otherwise only `image_token_id` must be given. `human` and `assistant` are texts put
    before a turn of each, for tokenizers without such markers.

    >>> transform = VisionLanguage(tile_size=4, tokens_per_tile=1)
    >>> transform.probe({"__key__": "a", "txt": "hi"}).cost
    {'tiles': 0, 'tokens': 4, 'label_tokens': 3}
    """

    deterministic = True

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        tile_size: int = 448,
        max_tiles: int = 12,
        thumbnail: bool = True,
        tokens_per_tile: int = 256,
        max_tokens: int | None = None,
        image_token_id: int | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        human: str = "",
        assistant: str = "",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        for name, value, top in (
            ("tile_size", tile_size, 4096),
            ("max_tiles", max_tiles, 1024),
            ("tokens_per_tile", tokens_per_tile, 1 << 16),
            ("max_pixels", max_pixels, 1 << 40),
            ("max_tokens", 1 if max_tokens is None else max_tokens, 1 << 31),
        ):
            if not 1 <= value <= top:
                raise ValueError(f"{name} must be 1 to {top}, got {value}")
        self.tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
        self.tile_size = tile_size
        self.max_tiles = max_tiles
        self.thumbnail = thumbnail
        self.tokens_per_tile = tokens_per_tile
        self.max_tokens = max_tokens
        self.max_pixels = max_pixels
        self._texts = (human, assistant)
        self.markup = Markup(
            image=_image_id(image_token_id, self.tokenizer),
            bos=_given(bos_token_id, self.tokenizer, "bos_id"),
            eos=_given(eos_token_id, self.tokenizer, "eos_id"),
            human=self._marker(human, "human_id"),
            assistant=self._marker(assistant, "assistant_id"),
        )

    def __call__(self, raw: Raw) -> dict[str, np.ndarray[Any, Any]]:
        """Decode a raw sample; SampleError with the reason where that cannot be done."""
        layout = self._layout(raw)
        size = self.tile_size
        pixels = np.empty((sum(layout.tiles), 3, size, size), np.uint8)
        at = 0
        for name, opened, shape, count in zip(
            layout.names, layout.images, layout.grids, layout.tiles, strict=True
        ):
            try:
                image = opened.decode((shape[0] * size, shape[1] * size))
            except ImageError as error:
                raise SampleError(layout.key, f"{name}: {error}") from error
            cut(image, shape, pixels[at : at + count])
            at += count
        return {
            "pixel_values": pixels,
            "tiles_per_image": np.array(layout.tiles, np.int32),
            "input_ids": layout.input_ids,
            "labels": layout.labels,
        }

    def probe(self, raw: Raw) -> Probe:
        """Return the cost (tiles, tokens, label_tokens) and the payload's size, from headers."""
        layout = self._layout(raw)
        tiles, tokens = sum(layout.tiles), len(layout.input_ids)
        labelled = int(np.count_nonzero(layout.labels != IGNORED))
        nbytes = tiles * 3 * self.tile_size**2 + 8 * tokens + 4 * len(layout.tiles)
        cost = {"tiles": tiles, "tokens": tokens, "label_tokens": labelled}
        return Probe(layout.key, cost, nbytes)

    def spec(self) -> dict[str, Any]:
        """Return name and JSON arguments for a remote worker; ValueError if there are none."""
        return {"name": name_of(type(self)), "args": self._settings(spec_of(self.tokenizer))}

    def fingerprint(self) -> str:
        """Return a hash of the settings and of what the tokenizer makes of a test text."""
        ids = np.asarray(self._tokenize(CANARY)).tolist()
        return digest(self._settings(ids))

    def _settings(self, tokenizer: Any) -> dict[str, Any]:
        marks = self.markup
        return {
            "tokenizer": tokenizer,
            "tile_size": self.tile_size,
            "max_tiles": self.max_tiles,
            "thumbnail": self.thumbnail,
            "tokens_per_tile": self.tokens_per_tile,
            "max_tokens": self.max_tokens,
            "image_token_id": marks.image,
            "bos_token_id": marks.bos[0] if marks.bos else None,
            "eos_token_id": marks.eos[0] if marks.eos else None,
            "human": self._texts[0],
            "assistant": self._texts[1],
            "max_pixels": self.max_pixels,
        }

    def _layout(self, raw: Raw) -> _Layout:
        key = str(raw.get("__key__", ""))
        names = image_members(raw)
        try:
            spoken = turns(raw, len(names))
            images = tuple(self._opened(raw, name) for name in names)
            grids = tuple(grid(*one.size, self.tile_size, self.max_tiles) for one in images)
            tiles = tuple(tile_count(shape, self.thumbnail) for shape in grids)
            image_tokens = [count * self.tokens_per_tile for count in tiles]
            ids, labels = lay_out(
                spoken, image_tokens, self._tokenize, self.markup, self.max_tokens
            )
        except ValueError as error:
            raise SampleError(key, str(error)) from error
        return _Layout(key, names, images, grids, tiles, ids, labels)

    def _opened(self, raw: Raw, name: str) -> OpenedImage:
        try:
            return open_image(raw[name], self.max_pixels)
        except ImageError as error:
            raise ImageError(f"{name}: {error}") from error

    def _tokenize(self, text: str) -> np.ndarray[Any, Any]:
        if type(self.tokenizer) is ByteTokenizer:
            return self.tokenizer.array(text)
        return np.asarray(self.tokenizer(text), np.int32)

    def _marker(self, text: str, attribute: str) -> tuple[int, ...]:
        if text:
            return tuple(int(token) for token in self._tokenize(text))
        return _given(None, self.tokenizer, attribute)


def image_members(raw: Raw) -> tuple[str, ...]:
    """Return the names of a sample's image members, numbers in them in their natural order.

    >>> image_members({"json": {}, "img10.jpg": b"", "img2.png": b"", "jpg": b""})
    ('jpg', 'img2.png', 'img10.jpg')
    """
    names = [name for name in raw if is_image(name)]
    return tuple(sorted(names, key=lambda name: (name.count("."), _natural(name))))


def _natural(name: str) -> list[tuple[str, int]]:
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _image_id(given: int | None, tokenizer: Tokenizer) -> int:
    found = _given(given, tokenizer, "image_id")
    if not found:
        raise ValueError(
            f"{type(tokenizer).__name__} has no image_id; give image_token_id, the token that "
            "stands for a piece of an image"
        )
    return found[0]


def _given(value: int | None, tokenizer: Tokenizer, attribute: str) -> tuple[int, ...]:
    found = getattr(tokenizer, attribute, None) if value is None else value
    return () if found is None else (int(found),)
