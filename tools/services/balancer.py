"""`counterpoise balancer`: a balancer that serves trainers and workers on other machines."""

import functools
import logging
import time
from pathlib import Path

import click

from ...balancer.coordinator.machine import Coordinator
from ...balancer.coordinator.state import HEARTBEAT_TIMEOUT_S
from ...balancer.server.loop import serve
from ...balancer.server.pull_credentials import new_credentials
from ...balancer.transport.keys import ServerKeys, server_keys
from ...balancer.transport.sockets import check_open_address
from ...workers.codec.sample_layout import why_bad_layout
from ..console.rejected_peers import RejectedPeers
from ..console.signals import stop_on_signal
from .supervise import supervise

logger = logging.getLogger("counterpoise")

# Balancers started at least a millisecond (2**20 ns) apart have different incarnations.
INCARNATION_BITS = 20


@click.command("balancer")
@click.option("--listen", default="tcp://127.0.0.1:5555", show_default=True, metavar="ADDRESS")
@click.option(
    "--keys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="The balancer's keys, made by counterpoise keygen; only allowed peers may connect.",
)
@click.option(
    "--heartbeat-timeout",
    type=click.FloatRange(min=2.0),
    default=HEARTBEAT_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Give up a worker without a heartbeat for this long (one is sent every second).",
)
@click.option(
    "--supervise", "is_supervised", is_flag=True, help="Start the balancer again if it is killed."
)
@click.option(
    "--insecure", is_flag=True, help="Without keys, allow an address that other hosts can reach."
)
def command(
    listen: str,
    keys: Path | None,
    heartbeat_timeout: float,
    is_supervised: bool,
    insecure: bool,
) -> int:
    """Serve one training job at a time: trainers bring it, workers decode for it.

    \b
    Example, three terminals:
      counterpoise balancer --listen tcp://127.0.0.1:5555
      counterpoise worker tcp://127.0.0.1:5555 --root /data
      python train.py        # DataLoader(..., balancer="tcp://127.0.0.1:5555")
    Over a network, after `counterpoise keygen keys`:
      counterpoise balancer --listen tcp://0.0.0.0:5555 --keys keys/balancer
    """  # noqa: D301
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    check_open_address(listen, insecure or keys is not None)
    own = server_keys(keys) if keys is not None else None
    if is_supervised and listen.endswith((":0", ":*")):
        raise ValueError(f"--supervise needs an address that stays: {listen} has no port")
    served = functools.partial(_serve, listen, own, heartbeat_timeout)
    if is_supervised:
        return supervise(served)
    served()
    return 0


def new_incarnation(now_ns: int) -> int:
    """Return the incarnation of a balancer that is started now."""
    return now_ns >> INCARNATION_BITS


def _serve(listen: str, keys: ServerKeys | None, heartbeat_timeout_s: float) -> None:
    """Serve until a signal asks to stop, and log who was refused."""
    rejected = RejectedPeers(logger.warning)
    with stop_on_signal() as stop:
        serve(
            Coordinator(
                heartbeat_timeout_s=heartbeat_timeout_s,
                incarnation=new_incarnation(time.time_ns()),
                check_layout=why_bad_layout,
                make_credentials=functools.partial(new_credentials, has_keys=keys is not None),
            ),
            listen,
            ready=lambda address: logger.info("listening on %s; Ctrl-C ends", address),
            stop=stop,
            refused=rejected,
            keys=keys,
        )
    rejected.report()
    if rejected.total:
        logger.info("refused %d messages and peers in all", rejected.total)
