"""`counterpoise plan`: a model's parallelism on a cluster, found before training."""

import click

from .job import job_command


@click.group(name="plan")
def command() -> None:
    """Plan parallelism: GPUs of each module, layers of each stage, what to recompute.

    Times and memory come from model shapes, or from a file with measured ones; parallelism.md
    says what is assumed.

    Example: counterpoise plan job --only orchestrate --gpus 1296 --batch 1920 --model mllm-72b
    """


command.add_command(job_command)
