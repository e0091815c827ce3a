"""The pool on a simulated network: every result once and right, whatever is lost or dies."""

import sys
from random import Random
from typing import Any

import pytest

from counterpoise.balancer.pool import pool as pool_module
from counterpoise.balancer.pool.giving import PartGiver
from counterpoise.balancer.pool.messages import (
    TELL_S,
    DoPart,
    FreeParts,
    PartBroken,
    PartMade,
    PartMeasured,
    PoolBeat,
)
from counterpoise.balancer.pool.parts import make_piece
from counterpoise.balancer.pool.pool import NetworkPool
from counterpoise.balancer.run.tasks import LOAD, MEASURE, Killed, Load, Measure
from tests.balancer.pool.network import Faults, Network, tasks_of


def play_seed(seed: int) -> Network:
    """Play a run whose shape and faults follow from a seed."""
    random = Random(seed)
    tasks = tasks_of(random, random.randint(1, 14))
    last = max((max(task[3:], default=0) for task in tasks), default=0)
    lossy = random.random() < 0.5
    faults = Faults(
        lost=0.05 * lossy,
        doubled=0.05 * lossy,
        delay_s=random.choice([0.0, 0.002, 0.3]),
        kills=random.choice([0, 0, 1, 3]),
        hangs=random.choice([0, 0, 0, 1]),
        leaves=random.choice([0, 0, 1]),
        poison=frozenset({random.randint(0, last)} if random.random() < 0.3 else ()),
        broken=frozenset(random.sample(range(last + 1), min(last, random.choice([0, 0, 2])))),
    )
    slow = random.choice([1.0, 10.0])
    network = Network(seed, random.randint(1, 5), faults, random.choice([0.002, 0.01, 0.05]),
                      collates=random.random() < 0.7, slow=slow)  # fmt: skip
    network.play(tasks)
    return network


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_each_result_comes_once_and_right(start: int) -> None:
    bad = {seed: n.problems for seed in range(start, start + 50) if (n := play_seed(seed)).problems}
    assert not bad


@pytest.mark.long
@pytest.mark.parametrize("start", range(0, 20_000, 500))
def test_each_result_comes_once_and_right_in_20000_seeds(start: int) -> None:
    bad = {s: n.problems for s in range(start, start + 500) if (n := play_seed(s)).problems}
    assert not bad


def loads(count: int, size: int) -> list[list[int]]:
    return [
        Load(0, range(n * size, (n + 1) * size), True, True, size=True).packed()
        for n in range(count)
    ]


def test_the_first_microbatch_is_spread_over_all_workers() -> None:
    network = Network(0, 4, Faults())
    network.pool.submit(1, loads(1, 64)[0])
    given = [(name, len(part.task)) for name, part in network.pool.take_messages()]
    assert sorted(given) == [(b"w1", 19), (b"w2", 19), (b"w3", 19), (b"w4", 19)]


def test_a_worker_10_times_slower_costs_little() -> None:
    network = Network(0, 4, Faults(), slow=10.0)
    took = network.play(loads(60, 64))
    assert not network.problems
    assert took < 60 * 64 * 0.01 / 3.1 / 0.8


def test_the_sample_that_kills_is_named_after_three_deaths() -> None:
    network = Network(0, 3, Faults(delay_s=0.0, poison=frozenset({70})))
    network.play(loads(10, 16))
    assert (network.problems, network.deaths) == ([], {70: 3})


@pytest.mark.parametrize("size", [1, 2, 8])
def test_the_sample_that_kills_is_named_where_answers_are_held_back(size: int) -> None:
    faults = Faults(delay_s=0.0, poison=frozenset({250}))
    network = Network(0, 3, faults, sample_s=0.0001, tell_s=TELL_S)
    network.play(loads(400 // size, size), most=60)
    assert (network.problems, network.deaths) == ([], {250: 3})


def test_a_simulated_run_meets_deaths_and_renewals() -> None:
    renewed = deaths = 0
    for seed in range(60):
        network = play_seed(seed)
        renewed += len(network.pool.renewed)
        deaths += sum(network.deaths.values())
    assert renewed > 10
    assert deaths > 10


def lose_a_part(pool: Any, part: Any) -> None:
    if part.places and part.places[0] > 0:
        part.task.awaited -= 1  # it is never given, and nobody waits for it
        part.answer = PartMade(0, 0, 0, (), (), (), (), (), 0, 0, 0)
    else:
        ENQUEUE(pool, part)


def swap_places(part: Any, worker: bytes, answer: Any) -> Any:
    piece = PIECE_OF(part, worker, answer)
    if piece is not None and len(piece.places) > 1:
        piece.places = (piece.places[1], piece.places[0], *piece.places[2:])
    return piece


def tell_twice(pool: Any, task: Any) -> None:
    COMPLETE(pool, task)
    if task.ticket is not None and task.number % 3 == 0:
        pool._results.append((task.number, pool._results[-1][1]))


def free_early(pool: Any, task: Any) -> None:
    COMPLETE(pool, task)
    for part in task.parts[:1]:
        if part.piece is not None and part.piece.worker is not None:
            pool.workers[part.piece.worker].freeing.append(part.piece.serial)


def forget_to_free(pool: Any, part: Any) -> None:
    del pool, part


ENQUEUE, COMPLETE = PartGiver.enqueue, NetworkPool._complete
PIECE_OF = make_piece


@pytest.mark.parametrize(
    ("where", "name", "bug", "report"),
    [
        (PartGiver, "enqueue", lose_a_part, "task"),
        (pool_module, "make_piece", swap_places, "for {"),
        (NetworkPool, "_complete", tell_twice, "two results"),
        (NetworkPool, "_complete", free_early, "freed early"),
        (NetworkPool, "_free_piece", forget_to_free, "hangs"),
    ],
    ids=["a part lost", "places swapped", "a result doubled", "freed early", "never freed"],
)
def test_a_planted_bug_is_reported(
    where: Any, name: str, bug: Any, report: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, bug)
    network = Network(0, 3, Faults(), collates=False)
    network.play(loads(8, 32), limit_s=20.0)
    assert any(report in problem for problem in network.problems)


def test_what_is_forgotten_is_freed_everywhere() -> None:
    network = Network(0, 3, Faults(lost=0.1, doubled=0.1))
    for number, task in enumerate(loads(6, 20), 1):
        network.pool.submit(number, task)
    while network.now < 0.3:
        network.step()
    network.pool.forget()
    while network.now < 60.0:
        network.step()
    assert network.is_quiet()
    assert network.pool.kept_bytes == 0


def test_samples_that_are_loaded_are_made_by_who_has_them() -> None:
    pool = NetworkPool(5.0, collates=True, skips=True)
    for name in (b"a", b"b"):
        pool.add_worker(name, 0.0)
    pool.submit(1, Measure(0, [3, 4]).packed())
    [(measurer, part)] = pool.take_messages()
    measured = PartMeasured(part.number, ((1,), (1,)), (), 1000, False, (1,))
    pool.take(measurer, measured, 0.1)
    pool.submit(2, Load(0, [4]).packed())
    assert [(name, each.task) for name, each in pool.take_messages()] == [(measurer, (0, 0, 0, 4))]


@pytest.mark.parametrize("kind", [LOAD, MEASURE])
def test_a_sample_that_kills_is_named_in_any_task(kind: int) -> None:
    network = Network(0, 2, Faults(delay_s=0.0, poison=frozenset({3})))
    network.pool.submit(1, [kind, 0, 0, 3])
    while (found := network.pool.receive()) is None:
        network.step()
    assert found == (1, Killed(3, 3))


def test_all_that_a_worker_may_have_begun_without_a_word_is_tried_sample_by_sample() -> None:
    pool = NetworkPool(5.0, collates=True, skips=True)
    pool.add_worker(b"a", 0.0)
    for number, work_us in ((1, 500), (2, 500), (3, 500)):
        pool.submit(number, Load(0, [2 * number, 2 * number + 1]).packed())
        if number == 1:
            [(_, part)] = pool.take_messages()
            pool.take(b"a", PartMade(part.number, 1, 8, (8,), (), (), (), (), 0, 0, work_us), 0.1)
    assert len(pool.take_messages()) == 2
    pool.lose(b"a", 0.2)
    pool.add_worker(b"b", 0.2)
    tried = []
    for _ in range(4):
        [(_, part)] = [said for said in pool.take_messages() if isinstance(said[1], DoPart)]
        tried.append(part.task[3:])
        pool.take(b"b", PartMade(part.number, 2, 8, (8,), (), (), (), (), 0, 0, 500), 0.3)
    assert sorted(tried)[-4:] == [(4,), (5,), (6,), (7,)]


def test_a_spare_sample_that_kills_is_named_and_another_taken() -> None:
    network = Network(0, 2, Faults(delay_s=0.0, poison=frozenset({1}), broken=frozenset({0})))
    network.play([Load(0, [0, 1, 2], spare=True).packed()])
    assert (network.problems, network.deaths) == ([], {1: 3})


def test_a_worker_that_hangs_is_given_up_after_its_lease() -> None:
    network = Network(0, 2, Faults(delay_s=0.0, hangs=1), sample_s=0.1, lease_s=20.0)
    while len(network.workers) and network.names == 2 and network.now < 60.0:
        if network.now == 0.0:
            for number, task in enumerate(loads(4, 32), 1):
                network.pool.submit(number, task)
        network.step()
    assert 6.0 < network.now < 30.0


def test_a_worker_that_leaves_is_given_nothing_and_may_go_when_it_keeps_nothing() -> None:
    pool = NetworkPool(5.0, collates=True, skips=True)
    pool.add_worker(b"a", 0.0)
    pool.submit(1, Load(0, [4]).packed())
    [(_, part)] = pool.take_messages()
    pool.take(b"a", PartMade(part.number, 7, 9, (9,), (), (), (), (), -1, -1, 1000), 0.1)
    pool.take(b"a", PoolBeat(0, -1, True, ()), 0.2)
    pool.submit(2, Load(0, [5]).packed())
    result = pool.receive()
    assert (pool.take_messages(), pool.leaving()) == ([], [])
    assert result is not None
    pool.free(result[1].batch)
    pool.look(0.3)
    assert pool.take_messages() == [(b"a", FreeParts((7,)))]
    assert pool.leaving() == [b"a"]


def test_a_piece_that_is_gone_is_made_again_in_place() -> None:
    pool = NetworkPool(5.0, collates=True, skips=True)
    pool.add_worker(b"a", 0.0)
    pool.submit(1, Load(0, [4]).packed())
    for serial in (7, 8):
        [(_, part)] = [each for each in pool.take_messages() if isinstance(each[1], DoPart)]
        answer = PartMade(part.number, serial, 9, (9,), (), (), (), (), -1, -1, 1000)
        pool.take(b"a", answer, 0.1)
        if serial == 7:
            result = pool.receive()
            assert result is not None
            ticket = result[1].batch
            pool.remake(ticket, [0])
    assert ([p.serial for p in ticket.pieces], ticket.version) == ([8], 1)
    assert pool.renewed == [ticket]


def test_what_collating_raises_is_raised_with_its_text() -> None:
    pool = NetworkPool(5.0, collates=True, skips=True)
    pool.add_worker(b"a", 0.0)
    pool.submit(1, Load(0, [4]).packed())
    [(_, part)] = pool.take_messages()
    pool.take(b"a", PartBroken(part.number, "KeyError: 'x'", 10), 0.1)
    result = pool.receive()
    assert result is not None
    with pytest.raises(RuntimeError, match="KeyError: 'x'"):
        result[1].reraise()
    assert pool.kept_bytes == 0


def test_nothing_is_made_ahead_while_a_worker_keeps_all_that_it_may() -> None:
    pool = NetworkPool(5.0, collates=True, skips=True)
    pool.add_worker(b"a", 0.0, most_bytes=9)
    assert pool.most_held > 1
    pool.submit(1, Load(0, [4]).packed())
    [(_, part)] = pool.take_messages()
    pool.take(b"a", PartMade(part.number, 7, 9, (9,), (), (), (), (), -1, 9, 1000), 0.1)
    assert pool.most_held == 0
    pool.take(b"a", PoolBeat(0, -1, False, (), most_bytes=10), 0.2)
    assert pool.most_held > 1
    pool.take(b"a", PoolBeat(0, -1, False, (), most_bytes=9), 0.3)
    assert pool.most_held == 0
    result = pool.receive()
    assert result is not None
    pool.free(result[1].batch)
    assert pool.most_held > 1


def test_until_it_is_known_what_a_microbatch_takes_there_is_one_a_worker() -> None:
    pool = NetworkPool(5.0, collates=True, skips=True)
    pool.add_worker(b"a", 0.0)
    pool.add_worker(b"b", 0.0)
    held = []
    for number in range(3):
        held.append(pool.held_bytes(0, 0))
        pool.submit(number, Load(0, [4]).packed())
    # More than any budget: what a rank does not wait for is made later.
    assert held == [0, 0, sys.maxsize]
    assert pool.held_bytes(0, mean_bytes=1) == 0
