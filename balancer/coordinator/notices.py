"""The state of the run for a rank: the answer to its ping, also sent unasked now and then."""

from ..protocol.messages import Ping, Pong
from .run_control import RunControl
from .state import CoordinatorState

# Characters of a process' name that are quoted.
MAX_NAME = 200
# Ranks that are named one by one.
MAX_RANKS = 8


def send_pong(runs: RunControl, peer: bytes, ping: Ping | None = None) -> None:
    """Send a rank the number of workers, the bytes held, and the reason that it waits.

    Sent without a ping it shows a rank that the balancer is here, and the server whether the rank
    can still be reached. A failure of the run is sent again, as it may have been lost.
    """
    state = runs.state
    held = state.run.delivery.budget.held_bytes if state.run else 0
    number, clock_us = ping.number if ping else 0, state.diagnostics.clock_us(state.now)
    waiting = label_reason(state, peer) or held_back_reason(state, peer) or waiting_reason(state)
    pong = Pong(state.workers_ready(), held, waiting, number, clock_us)
    state.send(peer, pong)
    if state.failure is not None and peer in state.ranks:
        runs.finish(peer, state.failure)


def held_back_reason(state: CoordinatorState, peer: bytes) -> str:
    """Return which process that shares its rank a process waits for, "" if for none."""
    rank = state.ranks.get(peer)
    if rank is None or rank.started is None or state.run is None:
        return ""
    nearest = state.requests.nearest_of(peer, state.run.number)
    slowest = state.sharers.why_held_back(rank, nearest.rank, nearest.step) if nearest else None
    if nearest is None or slowest is None:
        return ""
    name = slowest.hello.name or slowest.peer.decode(errors="replace")
    where = "cannot be reached" if slowest.peer in state.sharers.lost else "has not come further"
    return (
        f"{name:.{MAX_NAME}}, which shares this rank and {where} than step "
        f"{slowest.reached(nearest.rank)[0]}"
    )


def label_reason(state: CoordinatorState, peer: bytes) -> str:
    """Return which ranks' label tokens a process waits for, "" if for none."""
    rank = state.ranks.get(peer)
    if rank is None or rank.started is None or state.job is None:
        return ""
    found = state.labels.waits_for(peer, rank.started.run, state.job.ranks)
    if found is None:
        return ""
    step, missing = found
    names = {r: each.hello.name for each in state.ranks.values() for r in each.hello.ranks}
    of = ", ".join(f"{r} ({names.get(r) or 'not here':.{MAX_NAME}})" for r in missing[:MAX_RANKS])
    return f"the label tokens of step {step} from rank {of}"


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
