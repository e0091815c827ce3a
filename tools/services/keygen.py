"""`counterpoise keygen`: makes keys for a balancer, its workers and its trainers."""

from pathlib import Path

import click

from ...balancer.transport.keys import SECRET, write_keys
from ...balancer.transport.naming import checked_job
from ..console.commands import Command


@click.command("keygen", cls=Command)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--worker", "workers", multiple=True, metavar="NAME", help="Add a worker; repeatable."
)
@click.option(
    "--trainer", "trainers", multiple=True, metavar="NAME", help="Add a trainer; repeatable."
)
@click.option("--job", default="", help="The new keys are good for this job only.")
def command(folder: Path, workers: tuple[str, ...], trainers: tuple[str, ...], job: str) -> None:
    """Make keys in FOLDER: a folder each for the balancer, workers and trainers.

    Copy each folder to its machine and nowhere else. To revoke a key, remove its file from the
    balancer's folder allowed/.

    \b
    Example:
      counterpoise keygen keys                  # keys/balancer, keys/worker, keys/trainer
      counterpoise keygen keys --worker gpu7    # one more, let in by the same balancer
      counterpoise keygen keys --job run-a      # keys/worker-run-a, keys/trainer-run-a
      counterpoise balancer --listen tcp://0.0.0.0:5555 --keys keys/balancer
      counterpoise worker tcp://10.0.0.1:5555 --root /data --keys keys/worker
      python train.py        # DataLoader(..., balancer=Balancer(keys="keys/trainer"))
    """  # noqa: D301
    for name, about in _make_keys(folder, workers, trainers, checked_job(job) if job else ""):
        click.echo(f"{folder / name}  {about}")


def _make_keys(
    folder: Path, workers: tuple[str, ...], trainers: tuple[str, ...], job: str
) -> list[tuple[str, str]]:
    """Write the key files; return (folder, its purpose). Raises ValueError if a name is taken."""
    if not workers and not trainers:
        of_job = f"-{job}" if job else ""
        workers, trainers = (f"worker{of_job}",), (f"trainer{of_job}",)
    named = [(name, "worker") for name in workers] + [(name, "trainer") for name in trainers]
    _check_names(folder, [name for name, _ in named])
    uses = {"worker": "counterpoise worker --keys", "trainer": "Balancer(keys=...)"}
    folders = [(name, f"for {uses[role]}") for name, role in named]
    if not (folder / "balancer" / SECRET).exists():
        folders.insert(0, ("balancer", "for counterpoise balancer --keys"))
    write_keys(folder, dict(named), job)
    return folders


_MARKS = str.maketrans("", "", "-_.")


def _check_names(folder: Path, names: list[str]) -> None:
    """Raise ValueError for a name that is taken, used twice, or not safe as a folder's name."""
    for name in names:
        if not name.translate(_MARKS).isalnum() or name == "balancer":
            raise ValueError(f"{name!r} cannot be a name of keys: use letters, digits, - _ and .")
        if (folder / name / SECRET).exists():
            raise ValueError(f"{folder / name} has a key already: remove it, or choose a new name")
    if len(set(names)) < len(names):
        raise ValueError("two parties cannot have the same name")
