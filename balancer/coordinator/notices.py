"""The state of the run for a rank: the answer to its ping, also sent unasked now and then."""

from ..protocol.messages import Ping, Pong
from .run_control import RunControl
from .state import CoordinatorState


def send_pong(runs: RunControl, peer: bytes, ping: Ping | None = None) -> None:
    """Send a rank the number of workers, the bytes held, and the reason that it waits.

    Sent without a ping it shows a rank that the balancer is here, and the server whether the rank
    can still be reached. A failure of the run is sent again, as it may have been lost.
    """
    state = runs.state
    held = state.run.delivery.budget.held_bytes if state.run else 0
    number, clock_us = ping.number if ping else 0, state.diagnostics.clock_us(state.now)
    pong = Pong(state.workers_ready(), held, waiting_reason(state), number, clock_us)
    state.send(peer, pong)
    if state.failure is not None and peer in state.ranks:
        runs.finish(peer, state.failure)


def waiting_reason(state: CoordinatorState) -> str:
    """Return in a few words what the ranks wait for."""
    if not state.workers:
        return "a worker to connect"
    if missing := state.missing_ranks():
        return f"ranks {missing}, which have gone"
    if state.job is None:
        return "a trainer to bring a job"
    if state.run is not None:
        return state.run.waiting_reason()
    return "ranks to begin" if state.is_ready else "a worker to open the data"
