"""Reads a record as a chat with images: one form for OpenAI's, Hugging Face's, ShareGPT's, LLaVA's.

The text of a record is the first of: `messages`, `conversations` (turns of `role` and `content`, or
of `from` and `value`), `document`, `caption`, `text`, a member `.txt`, `.text` or `.caption`. In a
sample of a tar it is in the JSON member; any other record is a mapping that has it itself.

An image's place is a part {"type": "image"} or {"type": "image_url"} of a content, or a mark
<image> in a text. A part that says which image it is (`image`, `url`, `path`, `base64`) has that
one; all other places have the record's images in order: the image members of a tar's sample, else
the column `images` or `image`. Where there is no place at all the images come first in what the
user says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..sources.interface import SampleError
from ..vision_language.transform import image_members

Record = Mapping[str, Any]
Part = dict[str, Any]
PLACEHOLDER = "<image>"
ROLES = {
    **{name: name for name in ("system", "developer", "user", "assistant", "tool")},
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
}
CHATS = ("messages", "conversations")
DOCUMENTS = ("document", "caption", "text")
TEXT_MEMBERS = ("txt", "text", "caption")
# Where a part says which image it is.
NAMED = ("image", "image_url", "url", "path", "base64")
IMAGE_PART = {"type": "image"}
_NOTHING: Any = object()


@dataclass(frozen=True, slots=True)
class Chat:
    """A record's messages, whose contents are lists of parts, and its images in their order.

    images: as the record has them. A document is one message of the role "document".
    """

    key: str
    messages: tuple[dict[str, Any], ...]
    images: tuple[Any, ...]
    tools: Any = None

    @property
    def is_document(self) -> bool:
        """Return whether this is a text of nobody's, all of which is learned."""
        return bool(self.messages[0]["role"] == "document")


def key_of(record: Any) -> str:
    """Return the name that a record has: its key in a tar, or its `id` or `key`; "" for none."""
    if isinstance(record, Mapping):
        for name in ("__key__", "id", "key"):
            if isinstance(record.get(name), str | int):
                return str(record[name])
    return ""


def read_record(record: Any) -> Chat:
    """Return the chat of a record; SampleError says what is wrong with it, and what is needed."""
    key = key_of(record)
    if not isinstance(record, Mapping):
        raise SampleError(
            key, f"a record is a {type(record).__name__}, needed is a mapping with messages"
        )
    try:
        return _chat(key, record)
    except ValueError as error:
        raise SampleError(key, str(error)) from None


def _chat(key: str, record: Record) -> Chat:
    members = image_members(record) if "__key__" in record else ()
    text = _text_object(record)
    listed = [record[name] for name in members] if members else _listed(text)
    placed: list[Any] = []
    messages = [_message(number, turn, placed) for number, turn in enumerate(_turns(text, record))]
    unnamed = sum(place is _NOTHING for place in placed)
    if listed and not placed:
        _put_first(messages, len(listed))
        placed = [_NOTHING] * len(listed)
    elif unnamed != len(listed) and (unnamed or not members):
        # A tar's members may be named by the parts alone.
        raise ValueError(
            f"{unnamed} placeholders for {len(listed)} images: give as many {PLACEHOLDER} marks or "
            'parts {"type": "image"} as images, or none'
        )
    rest = iter(listed)
    images = tuple(next(rest) if place is _NOTHING else place for place in placed)
    chat = Chat(key, tuple(messages), images, text.get("tools") or None)
    if not chat.is_document and not any(each["role"] == "assistant" for each in messages):
        said = ", ".join(dict.fromkeys(each["role"] for each in messages))
        raise ValueError(f"no turn of the assistant, of which to learn (turns of: {said})")
    return chat


def _text_object(record: Record) -> Record:
    """Return the mapping that has the text: a JSON member, or the record itself."""
    found = record.get("json", record) if "__key__" in record else record
    if isinstance(found, Sequence) and not isinstance(found, str | bytes):
        return {"messages": found}
    if not isinstance(found, Mapping):
        raise ValueError(f"the JSON member is a {type(found).__name__}, not an object or a list")
    return found


def _listed(text: Record) -> list[Any]:
    """Return the images in a record's columns `images` or `image`."""
    found = text.get("images")
    if found is None:
        found = text.get("image")
    if found is None:
        return []
    is_list = isinstance(found, Sequence) and not isinstance(found, str | bytes)
    return list(found) if is_list else [found]


def _turns(text: Record, record: Record) -> list[Any]:
    for name in CHATS:
        found = text.get(name)
        if found is None:
            continue
        if not isinstance(found, Sequence) or isinstance(found, str | bytes) or not found:
            raise ValueError(f"{name} is {found!r:.80}, needed is a list of at least one turn")
        if isinstance(found[0], list | tuple):
            raise ValueError(
                f"{name} is a list of lists: one record at a time is read, and a batch of columns "
                "is what set_transform and with_transform of datasets give; use .over(dataset)"
            )
        return list(found)
    for name in DOCUMENTS:
        if text.get(name) is not None:
            return [_document(text[name], name)]
    for name in TEXT_MEMBERS:
        if name in record:
            return [_document(record[name], f".{name}")]
    names = ", ".join(sorted(str(name) for name in text if not str(name).startswith("__")))
    raise ValueError(f"no text: needed is one of {', '.join((*CHATS, *DOCUMENTS))} (has: {names})")


def _document(text: Any, name: str) -> dict[str, Any]:
    if not isinstance(text, str):
        raise ValueError(f"{name} is a {type(text).__name__}, not a text")
    return {"role": "document", "content": text}


def _message(number: int, turn: Any, placed: list[Any]) -> dict[str, Any]:
    """Return a turn with a role of Hugging Face's and a list of parts; adds its images' places."""
    if not isinstance(turn, Mapping):
        raise ValueError(f"turn {number} is a {type(turn).__name__}, not an object")
    speaker = turn.get("role", turn.get("from"))
    role = "document" if speaker == "document" else ROLES.get(speaker)
    if role is None:
        raise ValueError(f"turn {number} is from {speaker!r}; known are {', '.join(ROLES)}")
    content = turn.get("content", turn.get("value"))
    others = {
        name: value
        for name, value in turn.items()
        if name not in ("role", "from", "content", "value") and value is not None
    }
    if content is None and others.get("tool_calls"):
        return {"role": role, "content": [], **others}
    return {"role": role, "content": list(_parts(number, content, placed)), **others}


def _parts(number: int, content: Any, placed: list[Any]) -> Iterator[Part]:
    if isinstance(content, str):
        for place, text in enumerate(content.split(PLACEHOLDER)):
            if place:
                placed.append(_NOTHING)
                yield dict(IMAGE_PART)
            if text or not content:
                yield {"type": "text", "text": text}
        return
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise ValueError(f"turn {number} has no text: its content is {content!r:.80}")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            yield {"type": "text", "text": part["text"]}
        elif kind in ("image", "image_url"):
            placed.append(_image_of(part))
            yield dict(IMAGE_PART)
        else:
            raise ValueError(
                f"turn {number} has a part {part!r:.80}; known are parts of the types text, image "
                "and image_url"
            )


def _image_of(part: Mapping[str, Any]) -> Any:
    """Return the image that a part names; _NOTHING if it is the next of the record's."""
    for name in NAMED:
        found = part.get(name)  # a table has every column in every row, most of them None
        if found is None:
            continue
        if name == "image_url" and isinstance(found, Mapping):
            found = found.get("url")
        return f"data:;base64,{found}" if name == "base64" else found
    return _NOTHING


def _put_first(messages: list[dict[str, Any]], images: int) -> None:
    """Put places of images before what the user says first."""
    first = next((each for each in messages if each["role"] == "user"), messages[0])
    first["content"] = [*(dict(IMAGE_PART) for _ in range(images)), *first["content"]]
