"""Reads a record as a chat with images, videos and sounds: one form for all of their forms.

Forms are OpenAI's, Hugging Face's, ShareGPT's and LLaVA's; vision_language/chats.py finds the text.
In a sample of a tar it is in the JSON member; any other record is a mapping that has it itself.

The place of an image, a video or a sound is a part of a content, by its type, or a mark <image>,
<video>, <audio> in a text. A part that says which it is (`image`, `url`, `path`, `base64`) has that
one; all other places have the record's in order: the members of that kind of a tar's sample, else
the column `images` or `image`. Where a kind has no place at all it comes first in what the user
says: images, then videos, then sounds. <video> and <audio> are words of HTML, too, and marks only
where the record has videos or sounds in its columns or members.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..images.decode import is_image
from ..media.files import is_audio, is_video
from ..sources.interface import SampleError
from ..vision_language.chats import read_turns
from ..vision_language.transform import image_members

Record = Mapping[str, Any]
Part = dict[str, Any]
# In place of what a part says that it is: it says nothing.
NOTHING: Any = object()


class MediaKind(NamedTuple):
    """Words of records for a kind of media: templates by `name`, and parts by any of `parts`."""

    name: str
    plural: str
    parts: tuple[str, ...]
    columns: tuple[str, ...]
    is_member: Callable[[str], bool]

    @property
    def mark(self) -> str:
        """The mark of a place in a text."""
        return f"<{self.name}>"


KINDS = (
    MediaKind("image", "images", ("image", "image_url"), ("images", "image"), is_image),
    MediaKind("video", "videos", ("video", "video_url"), ("videos", "video"), is_video),
    MediaKind(
        "audio", "sounds", ("audio", "audio_url", "input_audio"), ("audios", "audio"), is_audio
    ),
)
MEDIA_COLUMNS = tuple(name for kind in KINDS for name in kind.columns)


@dataclass(frozen=True, slots=True)
class Chat:
    """A record's messages, whose contents are lists of parts, and its images in their order.

    images, videos, sounds: as the record has them. A document is one message of role "document".
    """

    key: str
    messages: tuple[dict[str, Any], ...]
    images: tuple[Any, ...]
    tools: Any = None
    videos: tuple[Any, ...] = ()
    sounds: tuple[Any, ...] = ()

    @property
    def is_document(self) -> bool:
        """Return whether this is a text without speakers, all of which is learned."""
        return bool(self.messages[0]["role"] == "document")


def find_key(record: Any) -> str:
    """Return the name that a record has: its key in a tar, or its `id` or `key`; "" for none."""
    if isinstance(record, Mapping):
        for name in ("__key__", "id", "key"):
            if isinstance(record.get(name), str | int):
                return str(record[name])
    return ""


def read_record(record: Any) -> Chat:
    """Return the chat of a record; SampleError says what is wrong with it, and what is needed."""
    key = find_key(record)
    if not isinstance(record, Mapping):
        kind = type(record).__name__
        raise SampleError(key, f"a record is a {kind}, needed is a mapping with messages")
    try:
        return _chat(key, record)
    except ValueError as error:
        raise SampleError(key, str(error)) from None


def _chat(key: str, record: Record) -> Chat:
    text = record.get("json", record) if "__key__" in record else record
    turns = read_turns(text, record, ("chat_template_kwargs",))
    text = text if isinstance(text, Mapping) else {}
    places = _Places(record, text)
    messages = []
    for number, turn in enumerate(turns):
        # Tables have each column in each row: what is None is not there.
        filled = {name: value for name, value in turn.items() if value is not None}
        is_call = "content" not in filled and filled.get("tool_calls")
        content = [] if is_call else list(_parts(number, filled.get("content"), places))
        messages.append({**filled, "content": content})
    media = {kind.plural: places.fill(kind, messages) for kind in reversed(KINDS)}
    chat = Chat(key, tuple(messages), tools=_tools(text.get("tools")), **media)
    if not chat.is_document and not any(message["role"] == "assistant" for message in messages):
        roles = ", ".join(dict.fromkeys(message["role"] for message in messages))
        raise ValueError(f"no turn of the assistant, of which to learn (turns of: {roles})")
    return chat


class _Places:
    """The images, videos and sounds that a record has, and what stands at their places."""

    def __init__(self, record: Record, text: Record) -> None:
        self.members, self.listed = dict[str, Any](), dict[str, list[Any]]()
        for kind in KINDS:
            names = image_members(record, kind.is_member) if "__key__" in record else ()
            self.members[kind.name] = names
            self.listed[kind.name] = [record[n] for n in names] if names else list_media(text, kind)
        self.placed: dict[str, list[Any]] = {kind.name: [] for kind in KINDS}
        marked = [kind for kind in KINDS if kind.name == "image" or self.listed[kind.name]]
        self.marks = re.compile(f"<({'|'.join(kind.name for kind in marked)})>")

    def put(self, name: str, value: Any = NOTHING) -> Part:
        """Return a part at which a thing is; the next of the record's where none is given."""
        self.placed[name].append(value)
        return {"type": name}

    def fill(self, kind: MediaKind, messages: list[dict[str, Any]]) -> tuple[Any, ...]:
        """Return all things of a kind, in order; ValueError for more or fewer than places."""
        listed, placed = self.listed[kind.name], self.placed[kind.name]
        unnamed = sum(place is NOTHING for place in placed)
        if listed and not placed:
            # what the user says first begins with them
            first = next((turn for turn in messages if turn["role"] == "user"), messages[0])
            first["content"] = [*(self.put(kind.name) for _ in listed), *first["content"]]
        elif unnamed != len(listed) and (unnamed or not self.members[kind.name]):
            # A tar's members may be named by the parts alone.
            raise ValueError(
                f"{unnamed} placeholders for {len(listed)} {kind.plural}: give as many {kind.mark} "
                f'marks or parts {{"type": "{kind.name}"}} as {kind.plural}, or none'
            )
        remaining = iter(listed)
        return tuple(next(remaining) if place is NOTHING else place for place in placed)


def _tools(tools: Any) -> Any:
    """Return the tools of a record, which tables and LLaMA-Factory have as a text of JSON."""
    try:
        return (json.loads(tools) if isinstance(tools, str) and tools else tools) or None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"tools is no JSON ({error})") from None


def list_media(text: Record, kind: MediaKind) -> list[Any]:
    """Return the images in a record's columns `images` or `image`, or others of their kind."""
    filled = dict[str, list[Any]]()
    for name in kind.columns:
        column = text.get(name)
        is_list = isinstance(column, Sequence) and not isinstance(column, str | bytes)
        if column is not None and (values := list(column) if is_list else [column]):
            filled[name] = values
    if len(filled) > 1:
        raise ValueError(f"both {' and '.join(filled)} have {kind.plural}: leave one of them out")
    return next(iter(filled.values()), [])


def _parts(number: int, content: Any, places: _Places) -> Iterator[Part]:
    # A text has marks at its odd places, when split by them; parts say their kind themselves.
    if isinstance(content, str):
        for place, text in enumerate(places.marks.split(content)):
            if place % 2:
                yield places.put(text)
            elif text or not content:
                yield {"type": "text", "text": text}
        return
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise ValueError(f"turn {number} has no text: its content is {content!r:.80}")
    for part in content:
        type_ = part.get("type") if isinstance(part, Mapping) else None
        kind = next((known for known in KINDS if type_ in known.parts), None)
        if type_ == "text" and isinstance(part.get("text"), str):
            yield {"type": "text", "text": part["text"]}
        elif kind is not None:
            yield places.put(kind.name, read_media(part, kind))
        else:
            raise ValueError(
                f"turn {number} has a part {part!r:.80}; known are parts of the types text, "
                f"{', '.join(name for known in KINDS for name in known.parts)}"
            )


def read_media(part: Mapping[str, Any], kind: MediaKind) -> Any:
    """Return what a part says that it is; NOTHING if it is the next of the record's."""
    for name in (*kind.parts, "url", "path", "base64"):
        media = part.get(name)  # a table has every column in every row, most of them None
        if media is None:
            continue
        if name == "input_audio" and isinstance(media, Mapping):  # {"data": base64, "format"}
            return f"data:;base64,{media.get('data', '')}"
        if name.endswith("_url") and isinstance(media, Mapping):
            media = media.get("url")
        return f"data:;base64,{media}" if name == "base64" else media
    return NOTHING
