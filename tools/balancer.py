"""`counterpoise balancer`: a balancer that serves trainers and workers on other machines."""

import logging

import click

from ..balancer.coordinator import Coordinator
from ..balancer.serve import serve
from ..balancer.sockets import check_open_address
from .signals import wish_to_end

logger = logging.getLogger("counterpoise")


@click.command("balancer")
@click.option("--listen", default="tcp://127.0.0.1:5555", show_default=True, metavar="ADDRESS")
@click.option("--insecure", is_flag=True, help="Allow an address that other hosts can reach.")
def command(listen: str, insecure: bool) -> None:
    """Serve one training job at a time: trainers bring it, workers decode for it.

    \b
    Example, three terminals:
      counterpoise balancer --listen tcp://127.0.0.1:5555
      counterpoise worker tcp://127.0.0.1:5555 --root /data
      python train.py        # DataLoader(..., balancer="tcp://127.0.0.1:5555")
    """  # noqa: D301
    check_open_address(listen, insecure)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with wish_to_end() as stop:
        serve(
            Coordinator(),
            listen,
            ready=lambda address: logger.info("listening on %s; Ctrl-C ends", address),
            stop=stop,
            malformed=lambda reason: logger.warning("dropped a message: %s", reason),
        )
