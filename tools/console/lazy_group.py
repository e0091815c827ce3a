"""A click group that imports a command's module only when the command is used."""

import importlib

import click

from ...balancer.near_names import near_name


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
