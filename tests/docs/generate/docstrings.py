"""A docstring in our form as Markdown: tables of arguments and examples become what they mean.

Docstrings are plain text for a terminal and an editor. Three things in them need more than Markdown
gives: a table of arguments ("name: meaning", continued on indented lines; below "Args:" where there
are many), an example (">>> "), and a block of code that is indented by four blanks.
"""

import inspect
import re

# An argument's name, or several; then two blanks or a colon, then what it means.
_ENTRY = re.compile(r"(?P<name>[\w.*]+(?:(?:, | and )[\w.*]+)*)(?:: | {2,})(?P<meaning>\S.*)")
_LONG = re.compile(r"(?P<name>\w+) (?P<meaning>\S.*)")


def to_markdown(docstring: str) -> str:
    """Return a docstring as Markdown, paragraph by paragraph.

    >>> print(to_markdown("Make.\\n\\nArgs:\\n    rank: which,\\n      from 0\\n    of: many"))
    Make.
    <BLANKLINE>
    | argument | meaning |
    | -- | -- |
    | `rank` | which, from 0 |
    | `of` | many |
    """
    return "\n\n".join(map(_paragraph, re.split(r"\n\s*\n", inspect.cleandoc(docstring))))


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if lines[0] == "Args:":
        lines = inspect.cleandoc("\n".join(["", *lines[1:]])).splitlines()
        text = "\n".join(lines)
    if text.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    if all(line.startswith("    ") for line in lines):
        return f"```python\n{inspect.cleandoc(text)}\n```"
    entries = _entries(lines)
    if not entries:
        return text
    rows = [f"| {_names(name)} | {escaped(meaning)} |" for name, meaning in entries]
    return "\n".join(["| argument | meaning |", "| -- | -- |", *rows])


def arguments_of(docstring: str) -> list[str]:
    """Return the names that are listed below "Args:", in their order.

    >>> arguments_of("Make it.\\n\\nArgs:\\n    rank: which\\n    ranks: how many")
    ['rank', 'ranks']
    """
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        if paragraph.startswith("Args:\n"):
            listed = inspect.cleandoc(paragraph.partition("\n")[2]).splitlines()
            return [name for names, _ in _entries(listed) for name in re.findall(r"\w+", names)]
    return []


def _entries(lines: list[str]) -> list[tuple[str, str]]:
    """Return the rows of a table of arguments; none where another line is not indented."""
    found: list[tuple[str, str]] = []
    column = 0
    for line in lines:
        entry = _ENTRY.fullmatch(line) or _LONG.fullmatch(line)
        # a name as long as its column has one blank behind it
        if entry and (entry.re is _ENTRY or entry.start("meaning") == column):
            found.append((entry["name"], entry["meaning"]))
            column = column or entry.start("meaning")
        elif found and line.startswith(" "):
            name, meaning = found[-1]
            found[-1] = (name, f"{meaning} {line.strip()}")
        else:
            return []
    # a paragraph of one line with a colon is a sentence
    return found if len(lines) > 1 else []


def _names(names: str) -> str:
    return re.sub(r"[\w.*]+", lambda name: f"`{name[0]}`" if name[0] != "and" else name[0], names)


def escaped(text: str) -> str:
    """Return text for a cell of a table: outside of code, a bar, * or < would mean something.

    >>> escaped("a | b, `c * d`")
    'a \\\\| b, `c * d`'
    """
    parts = text.split("`")
    return "`".join(
        part if number % 2 else re.sub(r"([|*<])", r"\\\1", part)
        for number, part in enumerate(parts)
    )
