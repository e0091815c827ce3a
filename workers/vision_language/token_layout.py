"""Lays out turns as token ids: markers, text, image tokens, and the labels of the loss.

One rule serves probing and decoding, so that the costs of the first are the sizes of the second.
Labels are at the index of their token (the model shifts them); the first token never has one,
since nothing comes before it. All texts become turns; a document is one by the model itself.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ..media.files import is_media
from ..sources.labels import IGNORED
from ..sources.registry import find_import_name
from .chats import OBJECT, TEMPLATE_FIELDS, TEXT_MEMBERS, read_turns

_lock = threading.Lock()


def one_at_a_time() -> threading.Lock:
    """Return the lock under which this process calls tokenizers that others have made.

    Those of Hugging Face, say, raise "Already borrowed" where two threads call one at a time.
    """
    return _lock


def _renew_lock() -> None:
    """Make another lock in a forked child: the thread that holds this one may not be there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class ByteTokenizer:
    """UTF-8 bytes as tokens 0..255, then the special ones. Nothing is lost, nothing is learned.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer("hé")
    [104, 195, 169]
    >>> tokenizer.decode([257, 104, 195, 169, 258])
    'hé'
    """

    pad_id = 256
    bos_id = 257
    eos_id = 258
    image_id = 259
    human_id = 260
    assistant_id = 261
    vocab_size = 262

    def __call__(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode("utf-8", "replace"))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the tokens that are bytes; the special ones are left out."""
        text = bytes(int(token) for token in ids if token < self.pad_id)
        return text.decode("utf-8", "replace")

    def spec(self) -> dict[str, object]:
        """Return what a remote worker needs to make the same tokenizer."""
        return {"name": find_import_name(type(self)), "args": {}}

    def array(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return the bytes of a text as uint8 (n,), without a Python object for each."""
        return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)


Role = Literal["human", "assistant", "document"]
PLACEHOLDER = "<image>"
# What a sample of images, or a tokenizer without a template, has no place for.
UNREAD = (*TEMPLATE_FIELDS, "videos", "video", "audios", "audio")
UNREAD_IN_TURNS = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")


class Turn(NamedTuple):
    """A speaker, and the pieces of text between the images (one more than images)."""

    role: Role
    pieces: tuple[str, ...]


def turns(raw: Mapping[str, Any], images: int) -> tuple[Turn, ...]:
    """Return the turns of a raw sample that has `images` images; ValueError says what is wrong.

    Images without any placeholder are put before the text. A sample with images and no text
    member at all is its images; a JSON member without text is an error.
    """
    if "json" in raw or any(name in raw for name in TEXT_MEMBERS):
        said = read_turns(raw.get("json", {}), raw, UNREAD)
    elif images == 0:
        names = ", ".join(sorted(name for name in raw if not name.startswith("__")))
        raise ValueError(f"no text and no image (members: {names})")
    else:
        said = [{"role": "document", "content": ""}]
    found = tuple([_turn(number, turn) for number, turn in enumerate(said)])
    # media of which the text tells, and which would not be in the sample
    clips = [name for name in raw if is_media(name)]
    record: Any = raw.get("json")
    if clips and found[0].role != "document":
        raise ValueError(f"{clips[0]} is in a chat, and only images are read: use HFProcessor")
    for name in ("images", "image") if isinstance(record, OBJECT) and images == 0 else ():
        if record.get(name):
            raise ValueError(f"{name} is {record[name]!r:.80}, and the sample has no image")
    placed = sum(len(turn.pieces) for turn in found) - len(found)
    if placed == 0 and images:
        first = found[0]
        return (Turn(first.role, ("",) * images + first.pieces), *found[1:])
    if placed != images:
        raise ValueError(f"{placed} {PLACEHOLDER} placeholders for {images} images")
    return found


def _turn(number: int, turn: Any) -> Turn:
    unread, text = [name for name in UNREAD_IN_TURNS if turn.get(name)], turn["content"]
    if unread:
        raise ValueError(f"turn {number} has {unread[0]}, which only a chat template can place")
    if isinstance(text, list):
        texts = []
        for part in text:
            kind = part.get("type") if isinstance(part, OBJECT) else None
            text_of_part = part.get("text") if kind == "text" else None
            is_image = kind in ("image", "image_url")
            if not (is_image or isinstance(text_of_part, str)):
                raise ValueError(
                    f"turn {number} has a part {part!r:.80}; known are text, image, image_url"
                )
            texts.append(PLACEHOLDER if is_image else str(text_of_part))
        text = "".join(texts)
    if not isinstance(text, str):
        raise ValueError(f"turn {number} has no text")
    role: Any = turn["role"] if turn["role"] in ("assistant", "document") else "human"
    return Turn(role, tuple(text.split(PLACEHOLDER)))


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
    # all pieces in order, and whether the model is trained on each
    pieces = list[tuple[Any, bool]]([(markup.bos, False)])
    images, of_images = iter(image_tokens), 0
    openings = {"human": markup.human, "assistant": markup.assistant, "document": ()}
    for turn in turns:
        trained = turn.role != "human"
        pieces.append((openings[turn.role], False))
        for number, text in enumerate(turn.pieces):
            if number:
                pieces.append((np.full(next(images), markup.image), False))
                of_images = len(pieces)
            if text:
                pieces.append((tokenize(text), trained))
        if trained:
            pieces.append((markup.eos, True))
    lengths = [len(tokens) for tokens, _ in pieces]
    end = sum(lengths[:of_images])
    if max_tokens is not None and end > max_tokens:
        raise ValueError(f"the last image ends at token {end}, beyond max_tokens={max_tokens}")
    ids = np.concatenate([np.asarray(tokens, np.int32) for tokens, _ in pieces])[:max_tokens]
    is_trained = np.repeat([trained for _, trained in pieces], lengths)[:max_tokens]
    is_trained[:1] = False
    return ids, np.where(is_trained, ids, np.int32(IGNORED))
