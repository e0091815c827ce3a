"""Lays out turns as token ids: markers, text, image tokens, and the labels of the loss.

One rule serves probing and decoding, so that the costs of the first are the sizes of the second.
Labels are at the index of their token (the model shifts them); the first token never has one,
since nothing comes before it.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .conversation import Turn

IGNORED = -100
Ids = np.ndarray[tuple[int], np.dtype[np.int32]]
Tokenizer = Callable[[str], Sequence[int]]
Piece = str | int | tuple[int, ...]  # a text, the places of an image, markers


@dataclass(frozen=True, slots=True)
class Markup:
    """The ids around the text; empty tuples where a vocabulary has none of the kind."""

    image: int
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()
    human: tuple[int, ...] = ()
    assistant: tuple[int, ...] = ()


def lay_out(
    turns: Sequence[Turn],
    image_tokens: Sequence[int],
    tokenize: Callable[[str], np.ndarray[Any, Any]],
    markup: Markup,
    max_tokens: int | None = None,
) -> tuple[Ids, Ids]:
    """Return (input_ids, labels), int32 (n,) each; image k takes `image_tokens[k]` places.

    Text beyond `max_tokens` is cut off; ValueError where that would cut into an image.

    >>> hello = [Turn("human", ("", "hi")), Turn("assistant", ("yo",))]
    >>> tokenize = lambda text: np.array([ord(letter) for letter in text])
    >>> ids, labels = lay_out(hello, [2], tokenize, Markup(image=9, bos=(1,), eos=(2,)))
    >>> ids.tolist(), labels.tolist()
    ([1, 9, 9, 104, 105, 121, 111, 2], [-100, -100, -100, -100, -100, 121, 111, 2])
    """
    parts = list[tuple[np.ndarray[Any, Any], bool]]()
    end = last_image_end = 0
    for piece, trained in _pieces(turns, image_tokens, markup):
        if isinstance(piece, str):
            tokens = tokenize(piece)
        elif isinstance(piece, int):
            tokens = np.full(piece, markup.image, np.int32)
        else:
            tokens = np.array(piece, np.int32)
        parts.append((tokens, trained))
        end += len(tokens)
        last_image_end = end if isinstance(piece, int) else last_image_end
    _refuse_cut_image(last_image_end, max_tokens)
    return _joined(parts, max_tokens)


def count_tokens(
    turns: Sequence[Turn],
    image_tokens: Sequence[int],
    count: Callable[[str], int],
    markup: Markup,
    max_tokens: int | None = None,
) -> tuple[int, int]:
    """Return the numbers of tokens and labels that `lay_out` makes; `count` counts a text's tokens.

    >>> hello = [Turn("human", ("", "hi")), Turn("assistant", ("yo",))]
    >>> count_tokens(hello, [2], len, Markup(image=9, bos=(1,), eos=(2,)))
    (8, 3)
    """
    most = sys.maxsize if max_tokens is None else max_tokens
    end = labels = last_image_end = 0
    for piece, trained in _pieces(turns, image_tokens, markup):
        start = end
        if isinstance(piece, str):
            end += count(piece)
        elif isinstance(piece, int):
            end = last_image_end = end + piece
        else:
            end += len(piece)
        if trained:
            labels += max(0, min(end, most) - max(start, 1))
    _refuse_cut_image(last_image_end, max_tokens)
    return min(end, most), labels


def _pieces(
    turns: Sequence[Turn], image_tokens: Sequence[int], markup: Markup
) -> Iterator[tuple[Piece, bool]]:
    """Yield every piece in order, and whether the model is trained on it."""
    yield markup.bos, False
    images = iter(image_tokens)
    openings = {"human": markup.human, "assistant": markup.assistant, "document": ()}
    for turn in turns:
        trained = turn.role != "human"
        yield openings[turn.role], False
        for number, text in enumerate(turn.pieces):
            if number:
                yield next(images), False
            if text:
                yield text, trained
        if trained:
            yield markup.eos, True


def _refuse_cut_image(end: int, max_tokens: int | None) -> None:
    if max_tokens is not None and end > max_tokens:
        raise ValueError(f"the last image ends at token {end}, beyond max_tokens={max_tokens}")


def _joined(
    parts: Sequence[tuple[np.ndarray[Any, Any], bool]], max_tokens: int | None
) -> tuple[Ids, Ids]:
    ids = np.concatenate([tokens for tokens, _ in parts]).astype(np.int32, copy=False)[:max_tokens]
    labels = np.full(len(ids), IGNORED, np.int32)
    at = 0
    for tokens, trained in parts:
        end = at + len(tokens)
        if trained:
            labels[at:end] = ids[at:end]
        at = end
    labels[:1] = IGNORED
    return ids, labels
