"""Transforms a raw sample into tiles and tokens, for InternVL-like models.

Probing and decoding share everything but the pixels: the same header gives the same grid, the same
text the same tokens. So a probed cost is exactly the decoded sample's.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..images.decode import MAX_PIXELS, image_size, is_image, look_at, open_image
from ..images.resize import resizer, resizer_facts
from ..sources.fingerprint import digest, library_versions
from ..sources.interface import Probe, SampleError
from ..sources.labels import count_label_tokens
from ..sources.registry import find_import_name, make_spec
from .tiles import cut, grid, tile_count
from .token_layout import ByteTokenizer, Ids, Markup, Tokenizer, lay_out, one_at_a_time, turns

Raw = Mapping[str, Any]
Size = tuple[int, int]
# Arguments that are what they are as JSON.
SETTINGS = (
    "tile_size", "max_tiles", "thumbnail", "tokens_per_tile", "max_tokens", "max_pixels", "resize",
)  # fmt: skip
# A tokenizer without a name is identified by the ids that it makes of this text.
CANARY = "The quick brown fox, 12.5% of it — naïve Ωmega 漢字 🙂\n\tjumps_over('lazy') dogs."


class VisionLanguage:
    """Raw samples of any WebDataset layout with images and text to training samples.

    Fields: `pixel_values` uint8 (tiles, 3, tile_size, tile_size), `tiles_per_image` int32
    (images,), `input_ids` and `labels` int32 (tokens,). Labels are -100 but for what the assistant
    says and for documents. Each image takes tiles x tokens_per_tile tokens `image_token_id`.

    Args:
        tokenizer: Any callable from text to ids; default bytes.
        tile_size: Side of a tile in pixels; default 448.
        max_tiles: Most tiles that an image is cut into; default 12.
        thumbnail: Whether an image of several tiles also has one of the whole; default True.
        tokens_per_tile: Tokens that a tile takes; default 256.
        max_tokens: Most tokens of a sample, whose text is cut off there; default no limit.
        image_token_id, bos_token_id, eos_token_id: Ids around texts and in place of images;
            default: the tokenizer's image_id, bos_id, eos_id, of which only the first must be.
        human, assistant: Texts before a turn of each; default: the tokenizer's human_id and
            assistant_id where it has them.
        max_pixels: Most pixels of an image file, larger ones are errors; default 178,956,970.
        resize: The library that resizes images, "torch", or "pillow", which is slower and gives
            Pillow's own pixels; default "torch".

    >>> transform = VisionLanguage(tile_size=4, tokens_per_tile=1)
    >>> transform.probe({"__key__": "a", "txt": "hi"}).cost
    {'tiles': 0, 'tokens': 4, 'label_tokens': 3}
    """

    deterministic = True
    thread_safe = True  # a tokenizer that is given is called by one thread at a time

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
        resize: str = "torch",
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
        self.resize = resize
        self._resizer = resizer(resize)
        self._texts = (human, assistant)
        image = _given(image_token_id, self.tokenizer, "image_id")
        if not image:
            raise ValueError(
                f"{type(self.tokenizer).__name__} has no image_id; give image_token_id, the token "
                "that stands for a piece of an image"
            )
        self.markup = Markup(
            image=image[0],
            bos=_given(bos_token_id, self.tokenizer, "bos_id"),
            eos=_given(eos_token_id, self.tokenizer, "eos_id"),
            human=self._marker(human, "human_id"),
            assistant=self._marker(assistant, "assistant_id"),
        )

    def __call__(self, raw: Raw) -> dict[str, np.ndarray[Any, Any]]:
        """Decode a raw sample; SampleError with the reason where that cannot be done."""
        names, size = image_members(raw), self.tile_size
        try:
            images = [look_at(name, open_image, raw[name], self.max_pixels) for name in names]
            shapes, tiles, ids, labels = self._lay_out(raw, [image.size for image in images])
            pixels = np.empty((sum(tiles), 3, size, size), np.uint8)
            at = 0
            for name, opened, shape, count in zip(names, images, shapes, tiles, strict=True):
                image = look_at(name, opened.decode, (shape[0] * size, shape[1] * size))
                cut(image, shape, pixels[at : at + count], self._resizer)
                at += count
        except ValueError as error:
            raise SampleError(str(raw.get("__key__", "")), str(error)) from error
        return {
            "pixel_values": pixels,
            "tiles_per_image": np.array(tiles, np.int32),
            "input_ids": ids,
            "labels": labels,
        }

    def probe(self, raw: Raw) -> Probe:
        """Return the cost (tiles, tokens, label_tokens) and the payload's size, from headers."""
        key, names = str(raw.get("__key__", "")), image_members(raw)
        try:
            sizes = [look_at(name, image_size, raw[name], self.max_pixels) for name in names]
            _, tiles, ids, labels = self._lay_out(raw, sizes)
        except ValueError as error:
            raise SampleError(key, str(error)) from error
        nbytes = sum(tiles) * 3 * self.tile_size**2 + 8 * len(ids) + 4 * len(tiles)
        labelled = count_label_tokens(labels)
        cost = {"tiles": sum(tiles), "tokens": len(ids), "label_tokens": labelled}
        return Probe(key, cost, nbytes)

    def _lay_out(self, raw: Raw, sizes: Sequence[Size]) -> tuple[list[Size], list[int], Ids, Ids]:
        """Return the grid and the tiles of each image, and the tokens and labels of the sample."""
        shapes = [grid(*size, self.tile_size, self.max_tiles) for size in sizes]
        tiles = [tile_count(shape, self.thumbnail) for shape in shapes]
        places = [count * self.tokens_per_tile for count in tiles]
        spoken = turns(raw, len(sizes))
        return shapes, tiles, *lay_out(spoken, places, self._tokenize, self.markup, self.max_tokens)

    def spec(self) -> dict[str, Any]:
        """Return name and JSON arguments for a remote worker; ValueError if there are none."""
        return {
            "name": find_import_name(type(self)),
            "args": self._settings(make_spec(self.tokenizer)),
        }

    def fingerprint(self) -> str:
        """Return a hash of the settings, the resizer, and what the tokenizer makes of test texts.

        Of a short one that is its ids, of a long one their number: tokenizers may truncate.
        """
        ids = [*np.asarray(self._tokenize(CANARY)).tolist(), len(self._tokenize(CANARY * 512))]
        facts = resizer_facts(self.resize, library_versions("torch")["torch"])
        return digest([self._settings(ids), facts])

    def _settings(self, tokenizer: Any) -> dict[str, Any]:
        marks = self.markup
        return {name: getattr(self, name) for name in SETTINGS} | {
            "tokenizer": tokenizer,
            "image_token_id": marks.image,
            "bos_token_id": marks.bos[0] if marks.bos else None,
            "eos_token_id": marks.eos[0] if marks.eos else None,
            "human": self._texts[0],
            "assistant": self._texts[1],
        }

    def _tokenize(self, text: str) -> np.ndarray[Any, Any]:
        if type(self.tokenizer) is ByteTokenizer:
            return self.tokenizer.array(text)
        with one_at_a_time():
            found = self.tokenizer(text)
        return _checked_ids(self.tokenizer, found)

    def _marker(self, text: str, attribute: str) -> tuple[int, ...]:
        if text:
            return tuple(int(token) for token in self._tokenize(text))
        return _given(None, self.tokenizer, attribute)


def image_members(raw: Raw, is_kind: Callable[[str], bool] = is_image) -> tuple[str, ...]:
    """Return the names of a sample's image members, numbers in them in their natural order.

    is_kind: of members of another kind, whether an extension names one.

    >>> image_members({"json": {}, "img10.jpg": b"", "img2.png": b"", "jpg": b""})
    ('jpg', 'img2.png', 'img10.jpg')
    """
    names = [name for name in raw if is_kind(name)]
    if len(names) < 2:
        return tuple(names)
    return tuple(sorted(names, key=lambda name: (name.count("."), _natural(name))))


def _natural(name: str) -> list[tuple[str, int]]:
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _checked_ids(tokenizer: Tokenizer, found: Any) -> np.ndarray[Any, Any]:
    """Return token ids as int32 (n,).

    Raises TypeError for a tokenizer that returns no list, ValueError for one that holds no ids.
    """
    if isinstance(found, Mapping) or hasattr(found, "input_ids"):
        raise TypeError(
            f"{type(tokenizer).__name__} returned a {type(found).__name__}, needed is a list of "
            "token ids: a Hugging Face tokenizer is given as tokenizer=lambda text: "
            "hf(text, add_special_tokens=False).input_ids"
        )
    try:
        ids = np.asarray(found)
    except (ValueError, TypeError, RuntimeError):  # lists that are not alike, a tensor elsewhere
        ids = np.array(None)
    if ids.ndim == 1 and not ids.size:
        return np.empty(0, np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < -(2**31) or ids.max() >= 2**31:
        # A float was rounded somewhere, and another id may be nearer.
        raise ValueError(
            f"{type(tokenizer).__name__} returned {found!r:.80}, needed is a flat list of token "
            "ids: whole numbers (no floats, no batch of one) below 2**31"
        )
    return ids.astype(np.int32, copy=False)


def _given(value: int | None, tokenizer: Tokenizer, attribute: str) -> tuple[int, ...]:
    found = getattr(tokenizer, attribute, None) if value is None else value
    return () if found is None else (operator.index(found),)
