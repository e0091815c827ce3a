"""The command `counterpoise`: a group that loads a command only when it is asked for.

One place turns errors into messages: a mistake of the caller (ValueError), of the system (OSError)
or of a process of ours (RuntimeError) becomes one line on standard error and exit status 2.
"""

import sys

import click

from ..balancer.protocol.software_version import VERSION
from .console.lazy_group import LazyGroup

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


group = LazyGroup(
    __package__,
    COMMANDS,
    name="counterpoise",
    help="Feed, balance and schedule vision-language training in PyTorch.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(VERSION, prog_name="counterpoise")(group)


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
