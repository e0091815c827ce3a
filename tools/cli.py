"""The command `counterpoise`: a group that loads a command only when it is asked for.

One place turns errors into messages: a mistake of the caller (ValueError), of the system (OSError)
or of a process of ours (RuntimeError) becomes one line on standard error and exit status 2.
"""

import importlib
import sys

import click

from .. import __version__

# name: (module in this folder, what it does)
COMMANDS = {
    "analyze": ("analyze.command", "Say how much of a step would be waiting, and what to do."),
    "balancer": ("services.balancer", "Serve trainers and workers on other machines."),
    "bench": ("bench.command", "Measure ours against baselines, in the same run."),
    "demo": ("demo.command", "Train a small model with random and with balanced batches."),
    "doctor": ("doctor.command", "Say what is wrong with an installation or a running job."),
    "keygen": ("services.keygen", "Make keys for a balancer, its workers and its trainers."),
    "plan": ("plan.command", "Find a model's parallel layout: GPUs, stages, recomputation."),
    "schedule": ("schedule.command", "Show, check, simulate and compare pipeline schedules."),
    "worker": ("services.worker", "Read, decode and stream samples for a balancer."),
}


class LazyGroup(click.Group):
    """A group whose commands are `command` objects in modules of this folder."""

    def __init__(self, modules: dict[str, tuple[str, str]], **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, sorted."""
        return sorted(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of a command, or None for an unknown name."""
        if cmd_name not in self.modules:
            return None
        loaded = importlib.import_module(f".{self.modules[cmd_name][0]}", __package__)
        command: click.Command = loaded.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.modules[name][1]) for name in self.list_commands(ctx)])


group = LazyGroup(
    COMMANDS,
    name="counterpoise",
    help="Feed, balance and schedule vision-language training in PyTorch.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(__version__, prog_name="counterpoise")(group)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit with 0 (done), 1 (found something wrong) or 2 (could not run)."""
    try:
        status = group.main(arguments, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except (ValueError, OSError, RuntimeError) as error:
        click.echo(f"counterpoise: {error}", err=True)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)
