# ruff: noqa: ARG005 (all kinds are made of two numbers, of which many need one)
"""Twenty kinds of samples, by the words that found-costs.md has for each: `samples_of(words)`."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

COUNT = 40
_lengths = np.random.default_rng(0).integers(20, 300, COUNT).tolist()
_others = np.random.default_rng(1).integers(1, 7, COUNT).tolist()
Words = namedtuple("Words", "source target")


@dataclass
class Clip:
    """A sample that is a dataclass."""

    frames: np.ndarray
    label: int


class Graph:
    """A sample that is an object with attributes."""

    def __init__(self, nodes: int) -> None:
        self.edges = torch.zeros(2, nodes)
        self._cache = [0] * nodes * nodes


def text(length: int) -> str:
    """Return a text of a length."""
    return "x" * length


def _chat(turns: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[k % 2], "content": text(97 * turns + 40 * k)} for k in range(turns)]


def _parts(turns: int) -> list[dict[str, Any]]:
    image = {"type": "image", "image": np.zeros((3, 8 * turns, 8), np.uint8)}
    said = {"type": "text", "text": text(150 * turns * turns)}
    return [{"role": "user", "content": [image] * (turns % 3) + [said]}]


# Of a length n and a small number m.
KINDS: dict[str, Callable[[int, int], Any]] = {
    "token ids, labels and mask in a dict, as lists": lambda n, m: {
        "input_ids": [1] * n, "labels": [1] * n, "attention_mask": [1] * n, "id": str(n)
    },
    "token ids of which labels are one fewer, as arrays": lambda n, m: {
        "labels": np.ones(n - 1, np.int64), "input_ids": np.ones(n, np.int64)
    },
    "token ids beside the text that they are of": lambda n, m: {
        "text": text(4 * n + m), "input_ids": [1] * n
    },
    "a tuple of a tensor and a class": lambda n, m: (torch.zeros(n), m),
    "a text": lambda n, m: text(n),
    "a dict of a text, its topic and its address": lambda n, m: {
        "topic": "abc"[: m % 3], "url": text(9 + m), "text": text(n)
    },
    "two texts in a dict": lambda n, m: {"prompt": text(20 * m), "completion": text(n)},
    "a list of numbers": lambda n, m: [0.5] * n,
    "an array of frames": lambda n, m: np.zeros((n, 80), np.float32),
    "a CHW image and its class": lambda n, m: (np.zeros((3, n, 32), np.uint8), m),
    "a Pillow image in a dict": lambda n, m: {"image": Image.new("RGB", (n, 20)), "label": m},
    "a list of images and token ids": lambda n, m: {
        "images": [np.zeros((3, 16, 16), np.uint8)] * m, "input_ids": [1] * n
    },
    "tiles, their numbers and token ids": lambda n, m: {
        "input_ids": [1] * n, "tiles_per_image": [m], "pixel_values": torch.zeros(m, 3, 14, 14)
    },
    "messages of a role and a content": lambda n, m: {"messages": _chat(m)},
    "messages with parts, some of them images": lambda n, m: {"messages": _parts(m)},
    "ragged lists of boxes": lambda n, m: {"boxes": [[0.0] * 4] * m},
    "words": lambda n, m: {"words": ["abc"] * n, "tags": [3] * n},
    "encoded images, as webdataset has them": lambda n, m: {
        "__key__": text(n), "jpg": bytes(50 * n), "cls": m
    },
    "audio beside its transcript": lambda n, m: {
        "audio": {"array": np.zeros(160 * n), "path": text(m), "sampling_rate": 16000},
        "text": text(15 * n + m),
    },
    "a dataclass": lambda n, m: Clip(np.zeros((m, 8, 8)), n),
    "a named tuple of two lists": lambda n, m: Words([1] * n, [1] * m),
    "an object with attributes": lambda n, m: Graph(n),
    "images in some samples only": lambda n, m: {"input_ids": [1] * n}
    | ({"image": np.zeros((3, m, m))} if m > 3 else {}),
    "samples of constant size": lambda n, m: {"image": np.zeros((3, 8, 8)), "label": n},
    "one sample larger than all others together": lambda n, m: {
        "input_ids": [1] * (COUNT * 50 if n == max(_lengths) else 40)
    },
}  # fmt: skip


def samples_of(words: str) -> list[Any]:
    """Return the samples of a kind."""
    return [KINDS[words](n, m) for n, m in zip(_lengths, _others, strict=True)]
