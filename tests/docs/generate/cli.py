"""A page for each command of `counterpoise`, from its click objects: what `--help` says.

The site is built with these pages; in the repository only their index is kept. Options are a
table, so that a narrow screen breaks lines, and not the columns of a help.
"""

import inspect
import re
from collections.abc import Iterator

import click

from counterpoise.tools.cli import COMMANDS, group
from counterpoise.tools.console.commands import Command
from tests.docs.generate.docstrings import escaped

TITLE = "All commands"
INTRODUCTION = """# Command line

Find the command for a task, and its options. `counterpoise COMMAND --help` prints the same.
"""


def index_page(is_site: bool = False) -> str:
    """Return the list of all commands: on the site with links to their pages, else to sources."""
    rows = []
    for name, (module, summary) in sorted(COMMANDS.items()):
        source = f"../../tools/{module.replace('.', '/')}.py"
        link = f"cli/{name}.md" if is_site else source
        rows.append(f"| [`counterpoise {name}`]({link}) | {summary} |")
    return "\n".join([INTRODUCTION, "| command | what it does |", "| -- | -- |", *rows, ""])


def groups() -> dict[str, dict[str, str]]:
    """Return all pages by their titles, in one group without a title."""
    return {"": {name: name for name in sorted(COMMANDS)}}


def pages() -> dict[str, str]:
    """Return the page of every command, by its name."""
    context = click.Context(group, info_name="counterpoise")
    found = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        parts = _described(command, click.Context(command, context, info_name=name), "#")
        found[name] = "\n\n".join(parts) + "\n"
    return found


def _described(command: click.Command, context: click.Context, heading: str) -> Iterator[str]:
    """Yield the paragraphs about a command, then those of the commands below it."""
    yield f"{heading} {context.command_path}"
    yield from map(_paragraph, inspect.cleandoc(command.help or "").split("\n\n"))
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```"
    if isinstance(command, Command):
        for heading, records in command.option_groups(context).items():
            rows = [_row(*record) for record in records if "--help" not in record[0]]
            if rows:
                name = "key" if heading.startswith("Keys") else "option"
                yield "\n".join([f"{heading}:\n", f"| {name} | meaning |", "| -- | -- |", *rows])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _described(
                below, click.Context(below, context, info_name=name), heading + "#"
            )


def _paragraph(text: str) -> str:
    """Return a paragraph of a help: \\b marks one whose lines stay as they are."""
    if text.startswith("\b\n"):
        first, _, rest = text.removeprefix("\b\n").partition("\n")
        if not rest:
            return first
        if first.endswith(":"):
            return f"{first}\n\n```text\n{inspect.cleandoc(rest)}\n```"
        return f"```text\n{first}\n{rest}\n```"
    return re.sub(r"(?<!\\)([*<])", r"\\\1", text)


def _row(names: str, meaning: str) -> str:
    # what may be given is told in brackets behind the meaning: [x>=1]
    names = names.replace(" RANGE", "").replace("|", "\\|")
    return f"| `{names}` | {escaped(' '.join(meaning.split()))} |"
