"""Click commands whose help shows the usual options first, and which explain wrong options."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ...balancer.near_names import near_name

COUNT = click.IntRange(min=1)
FILE = click.Path(path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")


class KeyedOption(click.Option):
    """An option that is written KEY=VALUE,...; `keys` says what each key means."""

    def __init__(self, *names: Any, keys: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.keys = keys


class Command(click.Command):
    """A command of `counterpoise`; usual: the names of the options that its help shows first."""

    def __init__(self, *arguments: Any, usual: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.usual = usual

    def option_groups(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return (option, meaning) by the heading under which the help lists them."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": [], "More options": []}
        for option in self.get_params(ctx):
            if not isinstance(option, click.Option):
                continue
            if (record := option.get_help_record(ctx)) is not None:
                is_usual = not self.usual or option.opts[-1] in self.usual
                groups["Options" if is_usual else "More options"].append(record)
            if isinstance(option, KeyedOption):
                groups[f"Keys of {option.opts[-1]}"] = list(option.keys.items())
        return {heading: records for heading, records in groups.items() if records}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usual options, then the others, then the keys of an option that has some."""
        for heading, records in self.option_groups(ctx).items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; click.UsageError, with what to write, for an unknown option or a repeated one."""
        try:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
        except click.NoSuchOption as error:
            key = error.option_name.lstrip("-")
            for option in self.params:
                if isinstance(option, KeyedOption) and key in option.keys:
                    ctx.fail(
                        f"No such option {error.option_name!r}. It is a key of {option.opts[-1]}: "
                        f"write {option.opts[-1]} {key}=..."
                    )
            raise
        # click would take the last value, silently
        for option in (option for option in order if isinstance(option, click.Option)):
            once = not (option.multiple or option.is_flag or ctx.resilient_parsing)
            if once and order.count(option) > 1:
                ctx.fail(f"{option.opts[-1]} is given {order.count(option)} times; give one")
        return super().parse_args(ctx, args)


class CommandGroup(click.Group):
    """A group of such commands."""

    command_class = Command


class LazyGroup(click.Group):
    """A group whose commands are `command` objects in the modules of one package.

    `modules` gives, for each command's name, its module below `package` and one line of help.
    """

    def __init__(
        self, package: str | None, modules: dict[str, tuple[str, str]], **settings: object
    ) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.package = package
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, sorted."""
        return sorted(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of a command; return None for an unknown name."""
        if cmd_name not in self.modules:
            return None
        loaded = importlib.import_module(f".{self.modules[cmd_name][0]}", self.package)
        command: click.Command = loaded.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; click.UsageError, with the nearest name, for an unknown one."""
        if not (args[0] in self.modules or args[0].startswith("-") or ctx.resilient_parsing):
            ctx.fail(f"No such command {args[0]!r}{near_name(args[0], self.modules)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.modules[name][1]) for name in self.list_commands(ctx)])
