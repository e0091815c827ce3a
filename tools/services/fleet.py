"""`counterpoise fleet`: a balancer and workers on this host, on Ray, or in a Slurm job."""

import logging
import math
import re
import socket
from pathlib import Path
from typing import Any

import click

from ...balancer.transport.finding import check_open_address
from ...balancer.transport.keys import peer_keys
from ...workers.fleet.control import FleetControl
from ...workers.fleet.engine import BalancerProcess, Engine
from ...workers.fleet.on_ray import Ray
from ...workers.fleet.processes import Processes, srun_words
from ...workers.fleet.ray_actors import RayActors, import_ray
from ..console.signals import stop_on_signal

logger = logging.getLogger("counterpoise")
_SRUN_HINT = "squeue --steps shows which have a place in the job"


class Pair(click.ParamType):  # type: ignore[type-arg]
    """NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:  # noqa: ARG002
        """Return name and value."""
        name, found, what = str(value).partition("=")
        return (name, what) if name and found else self.fail(f"{value!r} is not NAME=VALUE")


class Bounds(click.ParamType):  # type: ignore[type-arg]
    """N, or FEWEST:MOST."""

    name = "N|FEWEST:MOST"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:  # noqa: ARG002
        """Return the fewest and the most."""
        match = re.fullmatch(r"(\d+)(?::(\d+))?", str(value))
        fewest, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        return (fewest, most) if 1 <= fewest <= most else self.fail(f"{value!r}: give 4, or 4:64")


@click.command("fleet", context_settings={"ignore_unknown_options": True})
@click.argument("engine", type=click.Choice(["local", "ray", "slurm"]))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- WORKER OPTIONS")
@click.option("--workers", type=Bounds(), help="How many; 4:64 as ranks need them.")
@click.option("--cpus-per-worker", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--balancer", metavar="ADDRESS", help="Work for this one; default: one is started here."
)
@click.option("--host", help="Address of this host at which a balancer started here listens.")
@click.option(
    "--keys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keys made by counterpoise keygen: the folder with balancer/, worker/, trainer/.",
)
@click.option("--insecure", is_flag=True, help="Without keys, let anybody in who can reach it.")
@click.option("--het-group", type=int, help="Slurm: the part of the job that workers run in.")
@click.option("--label", type=Pair(), multiple=True, help="Ray: a label that nodes must have.")
@click.option("--resource", type=Pair(), multiple=True, help="Ray: what else a worker takes.")
@click.option("--ray-address", default="auto", show_default=True, help="Ray: the cluster.")
@click.option("--detached", metavar="NAME", help="Ray: leave it running under this name, and end.")
@click.option("--end", "ended", metavar="NAME", help="Ray: end the detached fleet of this name.")
def command(
    engine: str,
    words: tuple[str, ...],
    workers: tuple[int, int] | None,
    cpus_per_worker: int,
    balancer: str | None,
    host: str | None,
    keys: Path | None,
    insecure: bool,
    het_group: int | None,
    label: tuple[tuple[str, str], ...],
    resource: tuple[tuple[str, str], ...],
    ray_address: str,
    detached: str | None,
    ended: str | None,
) -> None:
    """Run workers, and a balancer for them, until Ctrl-C; then drain them.

    What follows -- are options of counterpoise worker.

    \b
    Example:
      counterpoise fleet local --workers 4 -- --root /data
      counterpoise fleet ray --workers 4:64 --label node-group=cpu --insecure -- --root /data
      counterpoise fleet ray --workers 4:64 --detached lab -- --root /data
      python train.py        # DataLoader(..., fleet=cp.fleet.Ray(name="lab"))
      counterpoise fleet slurm --workers 16 --het-group 1 --keys keys -- --root /data
    """  # noqa: D301
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if engine == "ray":
        import_ray().init(address=ray_address, log_to_driver=detached is None and ended is None)
    if engine == "ray" and ended is not None:
        Ray(name=ended).end()
        return
    if workers is None:
        raise ValueError("give --workers, 4 or 4:64, say")
    places: dict[str, Any] = {
        "resources": {name: float(amount) for name, amount in resource},
        "label_selector": dict(label),
    }
    if engine == "ray" and detached is not None:
        found = Ray(
            workers, None, cpus_per_worker, **places, options=words, name=detached, idle_s=math.inf
        ).join()  # fmt: skip
        click.echo(f"{detached} listens on {found[0]}")
        return
    made: Engine
    served = _balancer(balancer, host or _host(engine), keys, insecure)
    own = keys / "worker" if keys is not None else None
    given = [*words, "--insecure"] if insecure else [*words]
    address = served if isinstance(served, str) else served.address
    if engine == "ray":
        places = {name: value for name, value in places.items() if value}
        made = RayActors(address, given, {"num_cpus": cpus_per_worker, **places}, own)
    else:
        given += ["--keys", str(own)] if own else []
        launch = srun_words(cpus_per_worker, het_group) if engine == "slurm" else []
        made = Processes(address, given, launch, _SRUN_HINT if launch else "see what they logged")
    trainer = peer_keys(keys / "trainer", "trainer") if keys else None
    with stop_on_signal() as stop:
        logger.info("workers are for %s", address)
        FleetControl(made, served, workers, trainer).run(stop)


def _balancer(
    balancer: str | None, host: str, keys: Path | None, insecure: bool
) -> BalancerProcess | str:
    """Return the address that was given, or a balancer that is started here."""
    if balancer is not None:
        return balancer
    check_open_address(f"tcp://{host}:0", insecure or keys is not None)
    own = [] if keys is None else ["--keys", str(keys / "balancer")]
    return BalancerProcess(host, [*own, "--insecure"] if insecure else own)


def _host(engine: str) -> str:
    """Return this host's address, as those that run the workers reach it."""
    if engine == "ray":
        return str(import_ray().util.get_node_ip_address())
    return "127.0.0.1" if engine == "local" else socket.gethostbyname(socket.gethostname())
