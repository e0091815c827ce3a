"""Mistakes over DataLoader, BalancedBatchSampler and their values, and what each answer says."""

from collections.abc import Callable
from typing import Any

import pytest

import counterpoise as cp

SAMPLES = [1, 2]
TABLE = {"tokens": [1, 2]}


def loader(**arguments: Any) -> Callable[[], object]:
    return lambda: cp.DataLoader(SAMPLES, **arguments)


def balanced(**arguments: Any) -> Callable[[], object]:
    return loader(**{"balance": "fixed", "shuffle": True} | arguments)


def sampler(**arguments: Any) -> Callable[[], object]:
    return lambda: cp.BalancedBatchSampler(**{"cost": TABLE} | arguments)


def ranks(*of: Any, **arguments: Any) -> Callable[[], object]:
    return lambda: cp.Ranks(*of, **arguments)


def on_error(*action: Any, **arguments: Any) -> Callable[[], object]:
    return lambda: cp.OnError(*action, **arguments)


class Fleet:
    """Workers that bring their balancer."""

    def join(self) -> Any:
        """Return no address."""


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    # a field of a value, given beside it
    "a run's name": (
        loader(job="x"), "DataLoader has no argument job: write balancer=Balancer(job='x')",
    ),
    "a run's name beside the address": (
        loader(balancer="tcp://a:1", job="x"),
        "DataLoader has no argument job: write balancer=Balancer('tcp://a:1', job='x')",
    ),
    "dead letters": (
        loader(on_error="skip", dead_letter="a"),
        "DataLoader has no argument dead_letter: write on_error=OnError('skip', dead_letter='a')",
    ),
    "a loader's name": (
        loader(ranks={"dp": 2}, name="a"),
        "DataLoader has no argument name: write ranks=Ranks({'dp': 2}, name='a')",
    ),
    "a seed": (
        loader(balance="fixed", seed=3),
        "DataLoader has no argument seed: write balance=Balance('fixed', seed=3)",
    ),
    "a sampler's budgets": (
        sampler(budgets=9),
        "BalancedBatchSampler has no argument budgets: write balance=Balance(budgets=9)",
    ),
    # words of other loaders
    "a rank": (
        loader(rank=3, ranks=8), "DataLoader has no argument rank: write ranks=(3, 8), rank 3 of 8",
    ),
    "a misspelt topology": (
        loader(topolgy={"dp": 2}),
        "DataLoader has no argument topolgy: write ranks={'dp': 2, 'tp': 2}, or a DeviceMesh",
    ),
    "a fleet": (
        loader(fleet=Fleet()),
        "DataLoader has no argument fleet: write balancer=cp.fleet.Ray(workers=(4, 64))",
    ),
    "a sampler's process group": (
        sampler(process_group=None),
        "BalancedBatchSampler has no argument process_group: write ranks=group",
    ),
    # misspelt
    "jobs": (
        loader(jobs="x"),
        "DataLoader has no argument jobs; did you mean job= of balancer=Balancer(...)?",
    ),
    "a batch size": (
        loader(batchsize=2), "DataLoader has no argument batchsize; did you mean batch_size=?",
    ),
    "costs": (
        sampler(costs=TABLE), "BalancedBatchSampler has no argument costs; did you mean cost=?",
    ),
    "max_error": (
        on_error("skip", max_error=3),
        "OnError has no argument max_error; did you mean max_errors=?",
    ),
    "a number as text": (
        on_error("skip", max_errors="3"),
        "max_errors is '3': give a count, or a part of the samples such as 0.01",
    ),
    "a flag as a number": (
        on_error("skip", max_errors=True),
        "max_errors is True: give a count, or a part of the samples such as 0.01",
    ),
    "an action": (
        loader(on_error="skp"),
        "on_error is 'skp', allowed are 'raise', 'skip', 'refill'; did you mean 'skip'?",
    ),
    "nothing near": (
        lambda: cp.Balancer(colour=3),  # type: ignore[call-arg]
        "Balancer has no argument colour; it has address, job, keys",
    ),
    # of a wrong type
    "a lone number of ranks": (
        balanced(ranks=8),
        "ranks is 8: write ranks=(rank, 8) for one rank of 8, or ranks=Ranks(virtual=8) where this "
        "process plays all of them",
    ),
    "three numbers": (
        ranks((1, 2, 3)), "ranks is (1, 2, 3): give (rank, number of ranks), such as (3, 8)",
    ),
    "a text as ranks": (
        ranks("dp"),
        "ranks is 'dp': needed is a DeviceMesh with mesh_dim_names, the size of each dimension "
        "such as {'dp': 2, 'tp': 2}, a process group, or (3, 8) for rank 3 of 8",
    ),
    "a port as the balancer": (
        balanced(balancer=5555),
        "balancer is 5555: give an address such as 'tcp://HOST:PORT', or a fleet, "
        "cp.fleet.Ray(workers=(4, 64)), say",
    ),
    "a number of restarts": (
        on_error(worker_restarts="3"), "worker_restarts is '3', allowed are 0, 1, 2 and so on",
    ),
    "a rank that there is not": (ranks((8, 8)), "ranks is (8, 8): of 8 ranks, rank may be 0 to 7"),
    # contradictory, or two values where one is allowed
    "virtual ranks and a mesh": (
        ranks({"dp": 2}, virtual=2),
        "Ranks({'dp': 2}, virtual=2): virtual plays all ranks in this process, and another value "
        "says which rank it plays: leave one of them",
    ),
    "letters of what is raised": (
        on_error(dead_letter="a"),
        "dead_letter='a' records samples that on_error='skip' leaves out, and on_error is 'raise': "
        "give OnError('skip', dead_letter='a'), or leave dead_letter",
    ),
    "a fleet with keys": (
        lambda: cp.Balancer(Fleet(), keys="keys"),
        "keys is 'keys', and a fleet brings its balancer's keys: leave keys, or give the address "
        "of a balancer",
    ),
    "keys without a balancer": (
        balanced(balancer=cp.Balancer(keys="keys")),
        "Balancer(keys='keys') is for a balancer elsewhere, and no address is given: give "
        "balancer=Balancer('tcp://HOST:PORT', keys=...)",
    ),
    "ranks without balance": (
        loader(ranks=(0, 2)), 'ranks needs a balanced loader: give balance="balanced", say',
    ),
    "two files": (
        loader(keep_stats=("a.json", "b.json")),
        "keep_stats is ('a.json', 'b.json'): give one file, and \"report\"",
    ),
    "a sampler that plays all ranks": (
        sampler(ranks=cp.Ranks(virtual=2)),
        "virtual and name of Ranks are for a counterpoise.DataLoader, and a sampler lists the "
        "samples of one rank: give ranks=(rank, number of ranks), a mesh or a process group",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_what_to_write(name: str) -> None:
    mistake, answer = MISTAKES[name]
    with pytest.raises((TypeError, ValueError)) as raised:
        mistake()
    assert str(raised.value) == answer
