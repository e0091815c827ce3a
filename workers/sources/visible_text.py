"""Makes text that others wrote safe to show: keys, file names and messages of peers."""

import re

# A terminal acts on control characters, text is turned round by the marks of its direction, and
# no file takes half of a surrogate pair (Python's form of a byte of a name that is not UTF-8).
_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return a text with the characters that something would act on written as escapes.

    >>> print(visible("cat\x1b[31m.jpg"))
    cat\x1b[31m.jpg
    """
    return _ACTING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
