"""Renders a chat by its template, and finds the characters that are learned: the assistant's.

Where the template marks them with {% generation %}, they are what it marks, as in TRL's
`assistant_only_loss`. Else they are what a turn of the assistant adds to the text: where it begins
shows when the turns before it are rendered, with the prompt for a generation, and where it ends
when it is rendered too. Spaces at its end are left out, since a tokenizer puts them to the next
word; line ends are not, as in TRL's own templates for training.
"""

import bisect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Span = tuple[int, int]
_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")


def find_template(processor: Any, chat_template: str | None) -> str | None:
    """Return the chat template to use: `chat_template`, the processor's, or its tokenizer's."""
    holders = (processor, getattr(processor, "tokenizer", None))
    of_holders = (getattr(holder, "chat_template", None) for holder in holders)
    for template in (chat_template, *of_holders):
        if isinstance(template, Mapping):
            template = template.get("default")
        if template:
            return str(template)
    return None


def render(
    template: str, messages: Sequence[Mapping[str, Any]], words: Any, options: Mapping[str, Any]
) -> tuple[str, list[Span]]:
    """Return the text of a chat, and the spans of characters that are learned.

    words: the tokenizer, whose special tokens the template may name; options: its other variables.
    Raises ValueError where neither marks nor turns show what the assistant says.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    def rendered(turns: Sequence[Mapping[str, Any]], **asked: bool) -> tuple[str, list[Span]]:
        texts, spans = render_jinja_template(
            conversations=[list(turns)], chat_template=template,
            **{**words.special_tokens_map, **options}, **asked,
        )  # fmt: skip
        return texts[0], [(int(start), int(end)) for start, end in (spans[0] if spans else ())]

    if _MARK.search(template):
        return rendered(messages, return_assistant_tokens_mask=True)
    whole, _ = rendered(messages)
    spans = []
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, _ = rendered(messages[:place], add_generation_prompt=True)
        after, _ = rendered(messages[: place + 1])
        if not (after.startswith(before) and whole.startswith(after)):
            raise ValueError(
                f"turn {place} of the assistant cannot be found in the text, since the template "
                "renders it otherwise where turns follow or precede: give chat_template= with "
                "{% generation %} and {% endgeneration %} around what the assistant says"
            )
        spans.append((len(before), len(after.rstrip(" "))))
    return whole, spans


def moved(spans: Sequence[Span], replaced: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Return spans of a text as they are after placeholders in it were replaced.

    replaced: `span` of each placeholder, and `new_span` of what stands there, as processors say.

    >>> moved([(0, 2), (4, 6)], [{"span": (2, 3), "new_span": (2, 8)}])
    [(0, 2), (9, 11)]
    """
    ends = [placeholder["span"][1] for placeholder in replaced]
    new_ends = [placeholder["new_span"][1] for placeholder in replaced]
    gained: list[int] = [0, *(new_end - end for new_end, end in zip(new_ends, ends, strict=True))]

    def after(at: int) -> int:
        return at + gained[bisect.bisect_right(ends, at)]

    return [(after(start), after(end)) for start, end in spans]


def within(offsets: Sequence[Span], spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """Return for each token whether it has a character of some spans; offsets: those of its own.

    >>> within([(0, 0), (0, 3), (3, 5), (5, 9)], [(4, 9)]).tolist()
    [False, False, True, True]
    """
    is_within = np.zeros(len(offsets), bool)
    starts = [start for start, _ in offsets]
    for low, high in spans:
        # Tokens stand in the order of their characters; those added by the tokenizer are (0, 0).
        for place in range(max(0, bisect.bisect_left(starts, low) - 1), len(offsets)):
            start, end = offsets[place]
            if start >= high:
                break
            if start < high and end > low:
                is_within[place] = True
    return is_within
