"""The command `counterpoise`: a group of commands, each imported only when it is run.

This is the one place that turns errors into messages: a caller's mistake (ValueError), an error of
the system (OSError) or of our own processes (RuntimeError) becomes one line on standard error, with
exit status 2, or the error's own `exit_status`: 3, a peer that is lost; 4, data that are of no use.
"""

import sys
from typing import NoReturn

import click

from ..balancer.protocol.records import VERSION
from ..workers.sources.visible_text import visible
from .console.commands import LazyGroup

LONGEST = 2000
# name: (module in this folder, summary)
COMMANDS = {
    "analyze": ("analyze.command", "Forecast waiting on a data set, and recommend settings."),
    "balancer": ("services.balancer", "Serve trainers and workers on other machines."),
    "demo": ("demo.command", "Train a small model with random and with balanced batches."),
    "doctor": ("doctor.command", "Check an installation or a running job."),
    "fleet": ("services.fleet", "Run workers here, or on a Ray cluster."),
    "keygen": ("services.keygen", "Make keys for a balancer, its workers and its trainers."),
    "plan": ("plan.job", "Plan a model's parallelism: GPUs, stages, recomputation."),
    "prepare": ("prepare.command", "Write tar shards, or indexes and costs, from any source."),
    "profile": ("schedule.profile", "Fit what passes cost to measured steps."),
    "schedule": ("schedule.command", "Show, check, simulate and compare pipeline schedules."),
    "top": ("top.command", "Show a running job, live."),
    "trace": ("trace.command", "Record what a running job's parties do, for Perfetto."),
    "try": ("trial.command", "Try your own data set, and get the lines to paste."),
    "worker": ("services.worker", "Read, decode and stream samples for a balancer."),
}


group = LazyGroup(
    __package__,
    COMMANDS,
    name="counterpoise",
    help="Balanced data loading and pipeline schedules for vision-language training in PyTorch.\n\n"
    "\b\nExample:\n  counterpoise demo\n  counterpoise analyze shards/ --ranks 32\n"
    "  counterpoise COMMAND --help",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(VERSION, prog_name="counterpoise")(group)


def main(arguments: list[str] | None = None, group: click.Group = group) -> None:
    """Run a command line; exit with 0 (success), 1 (a problem was found), or an error's status."""
    try:
        status = group.main(arguments, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except (ValueError, OSError, RuntimeError) as error:
        status = 4 if type(error).__name__ == "SampleError" else 2
        _explain(str(error), getattr(error, "exit_status", status))
    except (MemoryError, OverflowError) as error:
        _explain(f"a number that was given is too large ({type(error).__name__}: {error})")
    sys.exit(status if isinstance(status, int) else 0)


def _explain(error: str, status: int = 2) -> NoReturn:
    """Print an error and exit; what it quotes of a file may be as long as the file."""
    text = (
        error if len(error) <= LONGEST else f"{error[: LONGEST // 2]} ... {error[-LONGEST // 2 :]}"
    )
    click.echo(f"counterpoise: {visible(text)}", err=True)
    sys.exit(status)
