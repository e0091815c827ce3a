"""`counterpoise plan`: a model's parallelism on a cluster, found before training."""

import click

from .check import check_command
from .job import job_command
from .orchestrate import orchestrate_command
from .partition import partition_command
from .recompute import recompute_command


@click.group(name="plan")
def command() -> None:
    """Plan parallelism: GPUs of each module, layers of each stage, what to recompute.

    Times and memory come from model shapes, or from a file with measured ones; parallelism.md
    says what is assumed.

    Example: counterpoise plan orchestrate --gpus 1296 --batch 1920 --model mllm-72b
    """


for _one in (job_command, check_command, orchestrate_command, partition_command, recompute_command):
    command.add_command(_one)
