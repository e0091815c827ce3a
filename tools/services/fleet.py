"""`counterpoise fleet`: a balancer and workers on this host, or on Ray."""

import logging
import re
from pathlib import Path
from typing import Any

import click

from ...balancer.transport.finding import check_open_address
from ...balancer.transport.keys import peer_keys
from ...workers.fleet.control import FleetControl
from ...workers.fleet.processes import BalancerProcess, local_launcher
from ...workers.fleet.ray_actors import HINT, import_ray, ray_launcher
from ..console.commands import EXISTING_FOLDER, Command
from ..console.signals import stop_on_signal

logger = logging.getLogger("counterpoise")


class Pair(click.ParamType):  # type: ignore[type-arg]
    """NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:  # noqa: ARG002
        """Return name and value."""
        name, equals, text = str(value).partition("=")
        return (name, text) if name and equals else self.fail(f"{value!r} is not NAME=VALUE")


class Bounds(click.ParamType):  # type: ignore[type-arg]
    """N, or FEWEST:MOST."""

    name = "N|FEWEST:MOST"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:  # noqa: ARG002
        """Return the fewest and the most."""
        match = re.fullmatch(r"(\d+)(?::(\d+))?", str(value))
        fewest, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        return (fewest, most) if 1 <= fewest <= most else self.fail(f"{value!r}: give 4, or 4:64")


@click.command(
    "fleet", cls=Command, usual=("--workers", "--balancer", "--keys"),
    context_settings={"ignore_unknown_options": True},
)  # fmt: skip
@click.argument("engine", type=click.Choice(["local", "ray"]))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- WORKER OPTIONS")
@click.option("--workers", type=Bounds(), required=True, help="How many; 4:64 as ranks need them.")
@click.option("--cpus-per-worker", type=click.IntRange(1), default=1, help="Ray: what it takes.")
@click.option(
    "--balancer", metavar="ADDRESS", help="Work for this one; default: one is started here."
)
@click.option("--host", help="Address of this host at which a balancer started here listens.")
@click.option(
    "--keys", type=EXISTING_FOLDER, metavar="FOLDER",
    help="Keys made by counterpoise keygen: the folder with balancer/, worker/, trainer/.",
)  # fmt: skip
@click.option("--insecure", is_flag=True, help="Without keys, accept all peers that can reach it.")
@click.option("--label", type=Pair(), multiple=True, help="Ray: a label that nodes must have.")
@click.option("--resource", type=Pair(), multiple=True, help="Ray: what else a worker takes.")
def command(
    engine: str, words: tuple[str, ...], workers: tuple[int, int], cpus_per_worker: int,
    balancer: str | None, host: str | None, keys: Path | None, insecure: bool,
    label: tuple[tuple[str, str], ...], resource: tuple[tuple[str, str], ...],
) -> None:  # fmt: skip
    """Run workers, and a balancer for them, until Ctrl-C; then drain them.

    What follows -- are options of counterpoise worker.

    \b
    Example:
      counterpoise fleet local --workers 4 -- --root /data
      counterpoise fleet ray --workers 4:64 --label node-group=cpu --insecure -- --root /data
    """  # noqa: D301
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if engine == "ray":
        import_ray().init(address="auto")
    host = host or (import_ray().util.get_node_ip_address() if engine == "ray" else "127.0.0.1")
    served = _balancer(balancer, str(host), keys, insecure)
    worker_keys = keys / "worker" if keys is not None else None
    worker_words = [*words, "--insecure"] if insecure else [*words]
    address = served if isinstance(served, str) else served.address
    trainer = peer_keys(keys / "trainer", "trainer") if keys else None
    if engine == "ray":
        options: dict[str, Any] = {"num_cpus": cpus_per_worker}
        options["resources"] = {name: float(amount) for name, amount in resource}
        if label:
            options["label_selector"] = dict(label)
        launch = ray_launcher(address, worker_words, options, worker_keys)
        fleet = FleetControl(launch, served, workers, trainer, HINT)
    else:
        worker_words += ["--keys", str(worker_keys)] if worker_keys else []
        fleet = FleetControl(local_launcher(address, worker_words), served, workers, trainer)
    with stop_on_signal() as stop:
        logger.info("workers are for %s", address)
        fleet.run(stop)


def _balancer(
    balancer: str | None, host: str, keys: Path | None, insecure: bool
) -> BalancerProcess | str:
    """Return the address that was given, or a balancer that is started here."""
    if balancer is not None:
        return balancer
    check_open_address(f"tcp://{host}:0", insecure or keys is not None)
    key_words = [] if keys is None else ["--keys", str(keys / "balancer")]
    return BalancerProcess(host, [*key_words, "--insecure"] if insecure else key_words)
