"""What two ranks hold, and what a step costs them, after 300 epochs or loaders: `make soak`."""

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

from counterpoise.loader.peers import joining, members
from tests.sched.runtime.pool import Pool
from tests.soak.growth import Held, held, soak
from tests.soak.test_soak import SKIP, Numbers, balanced

pytestmark = [pytest.mark.long, pytest.mark.slow]
RANKS = 2
# Ranks that share a host, and such that say they do not.
HOSTS = ["one host", "two hosts"]


def probe(_: Any) -> dict[str, int]:
    return {"tokens": 3}


def loader_of(rank: int, hosts: str, **options: Any) -> Any:
    machine = members.this_machine() if hosts == HOSTS[0] else f"host {rank}"
    setattr(joining, "this_machine", lambda: machine)  # noqa: B010 for mypy
    return balanced(Numbers(broken=3 if "on_error" in options else 0), **options)


def look(state: Any = None) -> Held:
    """Return what a rank holds when none does anything."""
    gc.collect()
    dist.barrier()
    found = held(state=state)
    dist.barrier()
    return found


def go_through_epochs(rank: int, hosts: str, options: dict[str, Any], steps: int | None) -> None:
    """Go through epochs of one loader, leaving each after some steps if that is said."""
    loader = loader_of(rank, hosts, **options)

    def turn() -> int:
        return sum(1 for _ in itertools.islice(loader, steps))

    soak(turn, lambda: look(loader.state_dict()))
    loader.close()


def leave_loaders(rank: int, hosts: str, options: dict[str, Any]) -> None:
    """Make loaders, leave each by `break`, and drop it.

    With known costs ranks may leave at other steps: they need nothing of each other.
    """
    last = 3 if "cost" in options else 3 + rank

    def turn() -> int:
        loader, done = loader_of(rank, hosts, **options), 0
        for _ in loader:
            done += 1
            if done == last:
                break
        return done

    # As many as a minute allows: one with a worker takes long to make.
    soak(turn, look, turns=60 if "num_workers" in options else 240)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    pool = Pool(world=RANKS)
    yield pool
    pool.close()


@pytest.mark.parametrize(("options", "steps"), [({}, None), (SKIP, None), ({"cost": probe}, 5)])
@pytest.mark.parametrize("hosts", HOSTS)
def test_epochs_of_ranks_leave_nothing(
    ranks: Pool, hosts: str, options: dict[str, Any], steps: int | None
) -> None:
    ranks.run(go_through_epochs, hosts, options, steps)


@pytest.mark.parametrize("options", [{}, {"cost": probe}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize("hosts", HOSTS)
def test_loaders_of_ranks_that_are_left_and_dropped_leave_nothing(
    ranks: Pool, hosts: str, options: dict[str, Any]
) -> None:
    ranks.run(leave_loaders, hosts, options)
