"""Reads the text of a sample: its turns, the places of its images, and who speaks.

A sample's text comes in one of three forms, looked for in this order: `conversations` (LLaVA's
[{"from": "human", "value": ...}], or [{"role": "user", "content": ...}]), `document` (a text with
images in its midst), a caption (`caption` or `text` in the JSON, or a .txt member). All become
turns; a document is one turn by the model itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

Role = Literal["human", "assistant", "document"]
PLACEHOLDER = "<image>"
ROLES: dict[str, Role] = {
    **dict.fromkeys(("human", "user", "system", "tool"), "human"),
    **dict.fromkeys(("gpt", "assistant", "model"), "assistant"),
}
CAPTIONS = ("caption", "text")
OBJECT = (dict, Mapping)  # JSON gives a dict, which isinstance recognises faster than a Mapping
TEXT_MEMBERS = ("txt", "text", "caption")


class Turn(NamedTuple):
    """A speaker, and the pieces of text between the images (one more than images).

    >>> Turn("human", ("", " What is it?")).images
    1
    """

    role: Role
    pieces: tuple[str, ...]

    @property
    def images(self) -> int:
        """Number of images in this turn."""
        return len(self.pieces) - 1


def turns(raw: Mapping[str, Any], images: int) -> tuple[Turn, ...]:
    """Return the turns of a raw sample that has `images` images; ValueError says what is wrong.

    Images without any placeholder are put before the text. A sample with images and no text
    member at all is its images; a JSON member without text is an error.
    """
    found = _spoken(raw)
    if found is None:
        if images == 0:
            raise ValueError("no text and no image" + _members(raw))
        found = (Turn("document", ("",)),)
    placed = sum(len(turn.pieces) for turn in found) - len(found)
    if placed == 0 and images:
        first = found[0]
        return (Turn(first.role, ("",) * images + first.pieces), *found[1:])
    if placed != images:
        raise ValueError(f"{placed} {PLACEHOLDER} placeholders for {images} images")
    return found


def _spoken(raw: Mapping[str, Any]) -> tuple[Turn, ...] | None:
    if "json" in raw:
        found = raw["json"]
        if isinstance(found, list):
            return _conversation(found)
        if not isinstance(found, OBJECT):
            raise ValueError(
                f"the JSON member is a {type(found).__name__}, not an object or a list"
            )
        # null counts as absent: tables exported to JSON have every column in every row
        if found.get("conversations") is not None:
            return _conversation(found["conversations"])
        for name in ("document", *CAPTIONS):
            if found.get(name) is not None:
                return (_document(found[name], name),)
    for name in TEXT_MEMBERS:
        if name in raw:
            return (_document(raw[name], f".{name}"),)
    if "json" in raw:
        known = ", ".join(("conversations", "document", *CAPTIONS))
        raise ValueError(f"no text: the JSON member has none of {known}")
    return None


def _conversation(spoken: Any) -> tuple[Turn, ...]:
    if not isinstance(spoken, (list, Sequence)) or isinstance(spoken, str) or not spoken:
        raise ValueError("conversations must be a list of at least one turn")
    return tuple([_turn(number, turn) for number, turn in enumerate(spoken)])


def _turn(number: int, turn: Any) -> Turn:
    if not isinstance(turn, OBJECT):
        raise ValueError(f"turn {number} is a {type(turn).__name__}, not an object")
    speaker = turn.get("from", turn.get("role"))
    text = turn.get("value", turn.get("content"))
    if not isinstance(speaker, str) or speaker not in ROLES:
        raise ValueError(f"turn {number} is from {speaker!r}; known are {', '.join(ROLES)}")
    if not isinstance(text, str):
        raise ValueError(f"turn {number} has no text")
    return Turn(ROLES[speaker], tuple(text.split(PLACEHOLDER)))


def _document(text: Any, name: str) -> Turn:
    if not isinstance(text, str):
        raise ValueError(f"{name} is a {type(text).__name__}, not a text")
    return Turn("document", tuple(text.split(PLACEHOLDER)))


def _members(raw: Mapping[str, Any]) -> str:
    names = ", ".join(sorted(name for name in raw if not name.startswith("__")))
    return f" (members: {names})" if names else ""
