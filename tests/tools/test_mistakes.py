"""Mistakes on the command line are answered by what is wrong, where, and what to write."""

from collections.abc import Iterator

import click
import pytest

from counterpoise.tools.cli import group, main
from counterpoise.tools.console.commands import Command
from tests.tools.test_exit_status import NOBODY

# They only fall.
MOST_OPTIONS, MOST_OF_A_COMMAND = 158, 15
MISTAKES = {
    # misspelt
    "analyse shards": ("No such command 'analyse'", "did you mean 'analyze'?"),
    "analyze shards --rank 4": ("No such option", "--rank", "Did you mean", "--ranks"),
    "schedule simulate 1f1b --costs ff=1": ("--costs got 'ff=1'", "did you mean 'f'?"),
    "schedule fill --model m --parallel vp=2": ("--parallel got 'vp=2'", "did you mean 'vpp'?"),
    "schedule show 1f2b": ("unknown schedule '1f2b'", "did you mean '1f1b'?"),
    # in another place
    "schedule show 1f1b --f 1": ("'--f'. It is a key of --costs: write --costs f=...",),
    "schedule compare 1f1b --scaling paper": ("write --costs scaling=...",),
    "plan job --only partition --tp 2": ("It is a key of --parallel: write --parallel tp=...",),
    "schedule fill --microbatches 8": ("write --parallel microbatches=...",),
    # contradictory
    "schedule show 1f1b --costs FILE --costs f=1": ("and 'f=1'; give a profile or times",),
    "schedule fill --case A --model m": ("give one of --case, --profile and --model",),
    "schedule fill --holds tokens=9": ("--holds is for --model",),
    "plan job --only partition --gpus 4": ("--only partition reads no --gpus: leave it out",),
    f"top {NOBODY} --json": ("--json is for --once",),
    "doctor --step 3": ("--step needs LEDGER and --data",),
    "doctor s3://b/t --step 3 --data d": ("--step needs LEDGER, a file",),
    "doctor s3://b/t --keys k": ("--keys needs ADDRESS",),
    "doctor --job a": ("--job needs ADDRESS",),
    "doctor FILE --dead-letter FILE": ("--dead-letter is examined by itself",),
    "prepare shards": ("give either --out DIR, for shards, or --index-only and --transform",),
    # of a wrong type
    "analyze shards --ranks four": ("'--ranks': 'four' is not a valid integer",),
    "analyze shards --layout pack": ("'--layout': 'pack' is not one of 'padded', 'packed'",),
    "schedule show 1f1b --costs f=soon": ("--costs got f='soon'; give milliseconds",),
    "schedule show 1f1b --costs profile": ("'profile', which is no file", "such as f=1,b=2"),
    "analyze shards --budget tokens": ("--budget got 'tokens'; write RESOURCE=AMOUNT",),
    # two values
    "schedule show 1f1b --ranks 2 --ranks 4": ("--ranks is given 2 times; give one",),
    "schedule show 1f1b --costs f=1,f=2": ("--costs has f twice; give it once",),
    "plan job --only partition --parallel pp=2,pp=4": ("--parallel has pp twice; give it once",),
    # left out
    "try": ("Missing argument 'SOURCE'",),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_answered_by_what_to_write(words, tmp_path, capsys):
    file = tmp_path / "profile.json"
    file.touch()
    with pytest.raises(SystemExit) as ended:
        main(words.replace("FILE", str(file)).split())
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert "Traceback" not in error
    for text in MISTAKES[words]:
        assert text in error


def commands(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield each command below a group by its name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for part in command.list_commands(context):
        below = command.get_command(context, part)
        assert below is not None
        yield from commands(below, f"{name} {part}".strip())


def test_options_are_few_and_usual_ones_are_there():
    counts = {}
    for name, command in commands(group):
        assert isinstance(command, Command), name
        names = [option.opts[-1] for option in command.params if isinstance(option, click.Option)]
        assert {*command.usual} <= {*names}, name
        counts[name] = len(names)
    assert sum(counts.values()) <= MOST_OPTIONS
    assert max(counts.values()) <= MOST_OF_A_COMMAND


def test_one_word_is_one_thing():
    """An option that commands share means the same, and has no second spelling."""
    for name, command in commands(group):
        for option in command.params:
            if isinstance(option, click.Option):
                assert len(option.opts) == 1, f"{name} {option.opts}"


def test_help_shows_usual_options_first(capsys):
    with pytest.raises(SystemExit):
        main(["analyze", "--help"])
    text = capsys.readouterr().out
    order = ("\nOptions:", "  --ranks INT", "More options:", "  --cache")
    places = [text.index(words) for words in order]
    assert places == sorted(places)
