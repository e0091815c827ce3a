"""Finds the text of a record: the turns of its chat, or its document.

It is the first of: `messages`, `conversations` (LLaVA's [{"from": "human", "value": ...}], or
[{"role": "user", "content": ...}]), `document` (a text with images in its midst), a caption
(`caption` or `text`), a member `.txt`, `.text` or `.caption`. Fields that would change the text and
are not read are refused by name: else another text would be learned, and nobody would know.
"""

from collections.abc import Mapping, Sequence
from typing import Any

ROLES = {
    **{name: name for name in ("system", "developer", "user", "assistant", "tool")},
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
}
CHATS = ("messages", "conversations")
DOCUMENTS = ("document", "caption", "text")
TEXT_MEMBERS = ("txt", "text", "caption")
# Beside a chat these change what a template makes of it (LLaMA-Factory, ms-swift, TRL).
TEMPLATE_FIELDS = ("tools", "chat_template_kwargs")
OBJECT = (dict, Mapping)  # JSON gives a dict, which isinstance recognises faster than a Mapping


def read_turns(found: Any, members: Mapping[str, Any], unread: Sequence[str]) -> list[Any]:
    """Return turns of `role`, `content`, and what else is in them; a text is of role "document".

    found: a record, or its chat; members: the files of its sample; unread: fields beside a chat
    that the caller has no use for. A field `system` is the first turn. Raises ValueError.
    """
    record = {"messages": found} if isinstance(found, list | tuple) else found
    if not isinstance(record, OBJECT):
        raise ValueError(f"the JSON member is a {type(found).__name__}, not an object or a list")
    # null counts as absent: tables exported to JSON have every column in every row
    name = next((name for name in CHATS if record.get(name) is not None), None)
    if name is None:
        document = _document(record, members)
        _refuse(record, ("system", *TEMPLATE_FIELDS), "a text that is no chat")
        return [document]
    _refuse(record, unread, name)
    turns, system = record[name], record.get("system")
    if not isinstance(turns, (list, Sequence)) or isinstance(turns, str | bytes) or not turns:
        raise ValueError(f"{name} is {turns!r:.80}, needed is a list of at least one turn")
    if isinstance(turns[0], list | tuple):
        raise ValueError(
            f"{name} is a list of lists: one record at a time is read, and a batch of columns "
            "is what set_transform and with_transform of datasets give; use .over(dataset)"
        )
    said = [_turn(number, turn) for number, turn in enumerate(turns)]
    if not system:
        return said
    if said[0]["role"] in ("system", "developer"):
        raise ValueError(
            f"two system prompts, the field system and the first of {name}: leave one out"
        )
    return [{"role": "system", "content": system}, *said]


def _turn(number: int, turn: Any) -> dict[str, Any]:
    if not isinstance(turn, OBJECT):
        raise ValueError(f"turn {number} is a {type(turn).__name__}, not an object")
    others = dict(turn)
    role, speaker, content, value = (
        others.pop(name, None) for name in ("role", "from", "content", "value")
    )
    speaker = speaker if role is None else role
    if not isinstance(speaker, str) or speaker not in ROLES:
        raise ValueError(f"turn {number} is from {speaker!r}; known are {', '.join(ROLES)}")
    masked = [name for name in ("weight", "train", "loss") if others.get(name) in (0, False)]
    if masked and ROLES[speaker] == "assistant":
        raise ValueError(
            f"turn {number} has {masked[0]}={others[masked[0]]}, and every turn of the assistant "
            "is learned: mark what is learned in a chat template, or leave the record out"
        )
    return {"role": ROLES[speaker], "content": value if content is None else content, **others}


def _document(record: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
    texts = [(name, record[name]) for name in DOCUMENTS if record.get(name) is not None]
    for name, text in texts or [(f".{n}", members[n]) for n in TEXT_MEMBERS if n in members]:
        if not isinstance(text, str):
            raise ValueError(f"{name} is a {type(text).__name__}, not a text")
        return {"role": "document", "content": text}
    names = ", ".join(sorted(str(name) for name in record if not str(name).startswith("__")))
    raise ValueError(f"no text: needed is one of {', '.join((*CHATS, *DOCUMENTS))} (has: {names})")


def _refuse(record: Mapping[str, Any], fields: Sequence[str], beside: str) -> None:
    if found := [name for name in fields if record.get(name)]:
        raise ValueError(
            f"{' and '.join(found)} beside {beside}: not read, and without it another text would "
            "be learned; write it into the text, or leave the field out"
        )
