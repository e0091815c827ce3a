"""Gives a chat's text to a processor or tokenizer, and labels the tokens of what is learned.

PaliGemma takes the answer as a suffix, before which all is seen at once; so of its chats only the
last answer is learned.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..sources.labels import IGNORED
from .fields import Fields, token_fields
from .records import KINDS, Chat
from .rendering import Span, moved, render, within


class Text(NamedTuple):
    """A chat's text, with placeholders for images, and the characters that are learned."""

    text: str
    spans: list[Span]


class Tokens(NamedTuple):
    """A processor's fields of a sample, with labels, and the place where its last image ends."""

    fields: Fields
    images_end: int


def is_pali_gemma(processor: Any) -> bool:
    """Return whether a processor takes the answer as a suffix."""
    return type(processor).__name__.endswith("PaliGemmaProcessor")


def render_text(
    chat: Chat, processor: Any, words: Any, template: str | None, options: Mapping[str, Any]
) -> Text:
    """Return the text of a chat; a document is its own text, all of it learned.

    words: the tokenizer. Raises TypeError where there is no template to render a chat by, and
    ValueError where the template refuses the chat.
    """
    from jinja2 import TemplateError

    # the text that stands for an image, video or sound before a processor replaces it
    marks = {kind.name: getattr(processor, f"{kind.name}_token", None) or "" for kind in KINDS}
    if chat.is_document and is_pali_gemma(processor):
        return _after(marks["image"] * len(chat.images), _join_text(chat.messages[0]))
    if chat.is_document:
        whole = _join_text(chat.messages[0], marks) + (words.eos_token or "")
        return Text(whole, [(0, len(whole))])
    if template is None and is_pali_gemma(processor):
        last = max(n for n, turn in enumerate(chat.messages) if turn["role"] == "assistant")
        before = "\n".join(_join_text(turn) for turn in chat.messages[:last])
        return _after(marks["image"] * len(chat.images) + before, _join_text(chat.messages[last]))
    if template is None:
        raise TypeError(
            f"{type(processor).__name__} has no chat template: give chat_template=, or set it on "
            "the processor"
        )
    messages = []
    for turn in chat.messages:  # templates of processors take parts, those of tokenizers text
        message = dict(turn)
        if not turn["content"]:  # a call of a tool alone
            del message["content"]
        elif processor is words:
            message["content"] = _join_text(turn)
        messages.append(message)
    try:
        return Text(*render(template, messages, words, {**options, "tools": chat.tools}))
    except TemplateError as error:
        raise ValueError(f"the chat template refuses the conversation: {error}") from error


def _after(before: str, learned_text: str) -> Text:
    whole = before + learned_text
    return Text(whole, [(len(before), len(whole))])


def _join_text(message: Mapping[str, Any], marks: Mapping[str, str] = MappingProxyType({})) -> str:
    return "".join(part.get("text", marks.get(part["type"], "")) for part in message["content"])


def tokenize(
    processor: Any, words: Any, text: Text, pictures: Sequence[Any], arguments: Mapping[str, Any]
) -> Tokens:
    """Return the tokens, labels and whatever else a processor makes of a text and its images.

    arguments: of the processor's call, videos and sounds among them. Raises TypeError for
    a tokenizer that does not say where its tokens are in the text, and a processor without tokens.
    """
    if is_pali_gemma(processor):
        return _with_suffix(processor, words, text, pictures, arguments)
    if type(processor).__name__.endswith("Idefics2Processor"):
        raise TypeError("Idefics2Processor does not say where images are in a text: use Idefics3's")
    if not getattr(words, "is_fast", False):
        raise TypeError(
            f"{type(words).__name__} is a slow tokenizer, which does not say where tokens are in "
            "the text: use its fast form (use_fast=True)"
        )
    arguments = {"return_offsets_mapping": True, **arguments}
    if processor is words:
        # A template has the special tokens, and no tokenizer adds them to what it rendered.
        outputs = words([text.text], **{"add_special_tokens": False, **arguments})
    else:
        if words.bos_token and text.text.startswith(words.bos_token):
            arguments = {"add_special_tokens": False, **arguments}
        seen = {"images": [[*pictures]]} if pictures else {}
        arguments = {"return_text_replacement_offsets": True, **arguments}
        outputs = processor(text=[text.text], **seen, **arguments)
    outputs = dict(outputs)
    if "offset_mapping" not in outputs:
        raise TypeError(
            f"{type(processor).__name__} makes {', '.join(outputs)} of a text: it is no processor "
            "of chats (of texts with images, videos or sounds in them)"
        )
    offsets = [(int(start), int(end)) for start, end in outputs.pop("offset_mapping")[0]]
    replaced = (outputs.pop("text_replacement_offsets", None) or [[]])[0]
    places = [placeholder["new_span"] for placeholder in replaced]
    fields = token_fields(outputs)
    ids = fields["input_ids"]
    is_learned = within(offsets, moved(text.spans, replaced))
    is_placed = within(offsets, places)
    fields["labels"] = np.where(is_learned & ~is_placed, ids, IGNORED)
    last = np.flatnonzero(is_placed)
    return Tokens(fields, int(last[-1]) + 1 if last.size else 0)


def _with_suffix(
    processor: Any, words: Any, text: Text, pictures: Sequence[Any], arguments: Mapping[str, Any]
) -> Tokens:
    """Return PaliGemma's tokens: it adds bos, a line end before the suffix, and eos after it."""
    if not pictures:
        raise ValueError("no image: PaliGemma takes none of the samples without")
    start, end = text.spans[-1]
    before, suffix = text.text[:start], text.text[start:end].removesuffix(words.eos_token)
    outputs = processor(text=[before], images=[[*pictures]], suffix=[suffix], **arguments)
    fields = token_fields(outputs)
    last = np.flatnonzero(fields["input_ids"] == processor.image_token_id)
    return Tokens(fields, int(last[-1]) + 1 if last.size else 0)
