"""Turns to token ids: markers, text, image tokens, and which of them the loss counts.

One rule serves probing and decoding, so that the costs of the first are the sizes of the second.
Labels stand at the place of their token (the model shifts them); the first token never has one,
since nothing comes before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .conversation import Turn

IGNORED = -100
Ids = np.ndarray[tuple[int], np.dtype[np.int32]]
Tokenizer = Callable[[str], Sequence[int]]


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
    parts: list[tuple[np.ndarray[Any, Any], bool]] = [(_array(markup.bos), False)]
    images = iter(image_tokens)
    last_image_end = position = len(markup.bos)
    for turn in turns:
        opening = {"human": markup.human, "assistant": markup.assistant, "document": ()}[turn.role]
        parts.append((_array(opening), False))
        position += len(opening)
        trained = turn.role != "human"
        for number, text in enumerate(turn.pieces):
            if number:
                count = next(images)
                parts.append((np.full(count, markup.image, np.int32), False))
                last_image_end = position = position + count
            if text:
                tokens = tokenize(text)
                parts.append((tokens, trained))
                position += len(tokens)
        if trained:
            parts.append((_array(markup.eos), True))
            position += len(markup.eos)
    if max_tokens is not None and image_tokens and last_image_end > max_tokens:
        raise ValueError(
            f"the last image ends at token {last_image_end}, beyond max_tokens={max_tokens}"
        )
    return _joined(parts, max_tokens)


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


def _array(tokens: Sequence[int]) -> Ids:
    return np.array(tokens, np.int32)
