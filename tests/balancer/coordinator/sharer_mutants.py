"""Planted bugs in what serves processes that share a rank, and in what fills empty microbatches.

test_mutants.py plants them one by one and expects the trials of shared ranks to notice each.
"""

from tests.balancer.coordinator.planting import Mutant, Plant, edit


def mutant(what: str, *plants: Plant, seed: int) -> Mutant:
    """Return a planted bug; `seed` is one that shows it, of the trials of shared ranks."""
    return Mutant(what, plants, seed)


SHARER_MUTANTS = (
    mutant(
        "a microbatch is forgotten when the first who shares it has it",
        edit("coordinator.peers.sharers:Sharers.needed",
             "min((each.reached(number) for each in counting), default=NOTHING)",
             "max((each.reached(number) for each in counting), default=NOTHING)"),
        seed=48,
    ),
    mutant(
        "an acknowledgement is taken for all who share the rank",
        edit("coordinator.rank_handlers:RankHandlers.acknowledge",
             "self.sharers.others(rank)", "False"),
        seed=48,
    ),
    mutant(
        "nobody waits for who falls behind",
        edit("coordinator.peers.sharers:Sharers.why_held_back",
             "step >= slowest.reached(number)[0] + rank.hello.ahead", "False"),
        seed=27,
    ),
    mutant(
        "the faster may be one step too far ahead",
        edit("coordinator.peers.sharers:Sharers.why_held_back",
             "step >= slowest.reached(number)[0] + rank.hello.ahead",
             "step > slowest.reached(number)[0] + rank.hello.ahead"),
        seed=27,
    ),
    mutant(
        "the fastest is waited for, not the slowest",
        edit("coordinator.peers.sharers:Sharers.why_held_back",
             "min(others, key=lambda each: each.reached(number))",
             "max(others, key=lambda each: each.reached(number))"),
        seed=27,
    ),
    mutant(
        "who shares a rank replaces the others",
        edit("coordinator.peers.records:RankPeer.has_seat_of",
             "mine.sharer == hello.sharer and not set(mine.ranks).isdisjoint(hello.ranks)",
             "not set(mine.ranks).isdisjoint(hello.ranks)"),
        seed=0,
    ),
    mutant(
        "the next run starts when one who shares a rank has started it",
        edit("coordinator.run_control:RunControl._ranks_beyond",
             "{number for number in beyond if not self.sharers.of_run(number, run)}",
             "beyond"),
        seed=1198,
    ),
    mutant(
        "one that is back counts as lost",
        edit("coordinator.peers.sharers:Sharers.add",
             "peer == rank.peer or lost.rank.has_seat_of(rank.hello)", "False"),
        seed=12,
    ),
    mutant(
        "a late one is not given what the others have had",
        edit("coordinator.rank_handlers:RankHandlers.start_run",
             "self.run is not None and self.run.starts_after(start, rank.hello.ranks)", "False"),
        seed=18,
    ),
    mutant(
        "requests of those who share a rank are one",
        edit("coordinator.peers.requests:_key",
             "request.run, request.step, request.microbatch, request.rank, peer",
             "request.run, request.step, request.microbatch, request.rank, b''"),
        seed=5,
    ),
    # --- microbatches that may not be empty
    mutant(
        "empty microbatches are left empty",
        edit("coordinator.delivery.tracker:DeliveryTracker._unblock",
             "self._fill_empty(step)", "None"),
        seed=15,
    ),
    mutant(
        "a sample is given to an empty microbatch and kept",
        edit("coordinator.delivery.step:_move",
             "tuple(each for each in old.samples if each is not sample)", "old.samples"),
        seed=15,
    ),
    mutant(
        "any microbatch gives a sample to an empty one, not the largest",
        edit("planning.problem.empty_cells:fill_empty",
             "max(beside or able, key=lambda each: len(usable[each]))", "(beside or able)[-1]"),
        seed=15,
    ),
)  # fmt: skip
