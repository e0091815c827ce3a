"""The generated pages are made from code: those that are kept as made, the others complete."""

import doctest
import inspect
import re
from pathlib import Path

import click
import pytest
import torch

import counterpoise
from counterpoise.balancer.transport.wire import KINDS
from counterpoise.tools.cli import group
from tests.docs.generate import api, cli, docstrings, llms, notebooks, protocol
from tests.docs.pages import DOCS, page_named

FENCED = re.compile(r"^```.*?^```", re.S | re.M)


@pytest.mark.parametrize(
    ("name", "page"),
    [("api", api.index_page), ("cli", cli.index_page), ("protocol", protocol.protocol_page)],
)
def test_the_committed_page_is_current(name: str, page) -> None:
    assert page_named(name).read_text() == page(), "run `make docs`"


def test_every_kind_of_message_is_on_the_page() -> None:
    page = protocol.protocol_page()
    assert [name for name in KINDS if f"**{name}**" not in page] == []


def test_a_microbatch_s_way_has_what_each_party_may_say() -> None:
    sides = {("worker", "trainer"), ("trainer", "worker")}
    titles = {(sender, to): f"{sender} to {to}".capitalize() for sender, _, to in protocol.WAY}
    titles |= dict.fromkeys(sides, "Between trainers and workers")
    for sender, kind, to in protocol.WAY:
        assert kind in protocol.ALL[titles[sender, to]]


def test_every_public_name_has_a_page() -> None:
    modules = {"adapters", "balancer", "fleet", "loader", "media", "sched", "workers"}
    told = {entry.name for entry in api.entries()}
    assert {*counterpoise.__all__} - modules <= told
    for entry in api.entries():
        heading = f"# {entry.name}\n" if entry.is_class else f"## `{entry.name}`\n"
        assert heading in api.pages()[entry.page]


def test_pages_that_docstrings_name_are_links() -> None:
    assert "Streams: [streams](../../guides/streams.md)" in api.pages()["DataLoader"]
    assert not [name for name, page in api.pages().items() if api.MENTION.search(page)]


def test_tables_of_arguments_are_tables() -> None:
    assert "| `decode_threads` | Threads that decode" in api.pages()["DataLoader"]
    assert "| `epoch`, `step` | Where the microbatch is" in api.pages()["StepInfo"]
    for name, page in api.pages().items():
        for line in FENCED.sub("", page).splitlines():
            assert not re.search(r"[\w)] {2,}\w", line), f"{name}: {line}"


MANY = 5
TORCH = {*inspect.signature(torch.utils.data.DataLoader).parameters}


def _unlisted() -> list[str]:
    """Return the public callables of more than MANY arguments whose docstrings do not list them."""
    unlisted = []
    for entry in api.entries():
        members = vars(entry.thing) if entry.is_class else {}
        callables = {entry.name: entry.thing} | {
            f"{entry.name}.{name}": getattr(entry.thing, name)
            for name, member in members.items()
            if not name.startswith("_") and not isinstance(member, property) and callable(member)
        }
        for name, thing in callables.items():
            try:
                parameters = {*inspect.signature(thing).parameters} - {"self"}
            except (TypeError, ValueError):  # a constant, or a Protocol
                continue
            parameters -= TORCH if name == "DataLoader" else set()
            listed = docstrings.arguments_of(inspect.getdoc(thing) or "")
            if len(parameters) > MANY and {*listed} != parameters:
                unlisted.append(f"{name}: {' '.join(sorted({*listed} ^ parameters))}")
    return unlisted


def test_many_arguments_are_listed_each() -> None:
    assert not _unlisted()


def _commands(command: click.Command, context: click.Context) -> list[tuple[str, click.Command]]:
    found = [(context.command_path, command)]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found += _commands(inner, click.Context(inner, context, info_name=name))
    return found


def test_every_command_and_option_is_on_its_page() -> None:
    pages = cli.pages()
    for path, command in _commands(group, click.Context(group, info_name="counterpoise"))[1:]:
        section = re.split(rf"^#+ {path}$", pages[path.split()[1]], flags=re.M)[1].split("\n#")[0]
        for each in command.params:
            if isinstance(each, click.Option) and not each.hidden:
                assert f"`{each.opts[0]}" in section, (path, each.opts)
        assert "\b" not in section
        assert r"\b" not in section


@pytest.mark.parametrize("module", [docstrings, llms, protocol])
def test_the_examples_of_the_generators_are_true(module) -> None:
    done = doctest.testmod(module)
    assert (done.attempted > 0, done.failed) == (True, 0)


@pytest.mark.parametrize("notebook", sorted(DOCS.glob("notebooks/*.ipynb")), ids=lambda n: n.stem)
def test_a_notebook_has_outputs_and_becomes_a_page(notebook: Path) -> None:
    page = notebooks.to_markdown(notebook)
    assert page.count('class="output"') >= 5
    assert "<img" in page
    # nothing of the machine that ran it
    outside = re.sub(r'src="[^"]*"', "", page)
    assert not re.search(r"/tmp|/home|/root|Warning|Traceback|\x1b", outside)
    for target in re.findall(r"\]\(([^)#\s]+)", notebook.read_text()):
        assert "://" in target or (notebook.parent / target).exists(), target
