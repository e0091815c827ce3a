"""Say who waits for whom: from where every rank stands in its list, to the rank that holds all up.

All ranks know all lists, so a rank only has to publish its step, its place in its list and whether
it waits there. The chain starts at the rank that asks and goes on to whom that one waits for, until
a rank that does not wait, or of which nothing is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .collectives import Collective
from .ops import Op


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a rank stood when it last said so.

    `at`: its operation. `waiting`: the text of the value that it waits for, "" while it computes.
    `since_s`: how long it has been there. `failed`: the error it has given up with.
    """

    step: int
    at: int
    waiting: str = ""
    since_s: float = 0.0
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Pipelines:
    """What all ranks know of a pipeline: every rank's operations, and the barriers' collectives."""

    lists: Sequence[Sequence[Op]]
    collectives: Mapping[str, Collective]

    def explain(self, me: int, standings: Mapping[int, Standing]) -> str:
        """Return a sentence that leads from a waiting rank to the one that holds it up.

        `standings`: by rank; ranks of which nothing is known are left out.

        >>> from .build import compile_program
        >>> from counterpoise.sched import schedule
        >>> program = schedule("1f1b", ranks=2, microbatches=2)
        >>> known = Pipelines([compile_program(program, rank) for rank in range(2)], {})
        >>> print(known.explain(1, {1: Standing(7, 1, "0F0", 60.0), 0: Standing(7, 0, "", 61.0)}))
        step 7: rank 1 at 1F0 waits since 60 s for 0F0 of rank 0; rank 0 is at 0F0 since 61 s
        """
        parts: list[str] = []
        rank, seen = me, set[int]()
        while rank not in seen:
            seen.add(rank)
            if (standing := standings.get(rank)) is None:
                parts.append(f"of rank {rank} nothing is known")
                break
            culprits = self._awaited(rank, standing, standings) if standing.waiting else []
            parts.append(self._describe(rank, standing, culprits))
            if not culprits:
                break
            rank = culprits[0]
        return f"step {standings[me].step}: " + "; ".join(parts)

    def _describe(self, rank: int, standing: Standing, culprits: Sequence[int]) -> str:
        ops, since = self.lists[rank], f"since {standing.since_s:.0f} s"
        place = str(ops[standing.at].what) if standing.at < len(ops) else "the end of its step"
        if standing.waiting:
            whom = " and ".join(map(str, culprits)) or "nobody known"
            return f"rank {rank} at {place} waits {since} for {standing.waiting} of rank {whom}"
        return f"rank {rank} is at {place} {since}"

    def _awaited(
        self, rank: int, standing: Standing, standings: Mapping[int, Standing]
    ) -> list[int]:
        """Return the ranks that have not done their part in what a rank waits for."""
        made = next((op for op in self.lists[rank] if standing.waiting in _texts(op)), None)
        if made is not None and made.source is not None:
            return [made.source]
        if made is not None and made.what.kind in self.collectives:
            return self._not_entered(rank, made, standing, standings)
        # Its own value: a send that its receivers have not taken.
        sends = (op for op in self.lists[rank] if op.targets and _read(op) == standing.waiting)
        return [target for op in sends for target in op.targets]

    def _not_entered(
        self, rank: int, entry: Op, standing: Standing, standings: Mapping[int, Standing]
    ) -> list[int]:
        """Return the ranks whose entry into a collective is missing."""
        found = self.collectives[entry.what.kind]
        others = [found.root] if found.operation == "broadcast" else range(len(self.lists))
        name = (entry.what.kind, entry.what.microbatch)
        return [
            other
            for other in others
            if other != rank and not self._has_entered(other, name, standing, standings)
        ]

    def _has_entered(
        self,
        rank: int,
        name: tuple[str, int],
        standing: Standing,
        standings: Mapping[int, Standing],
    ) -> bool:
        """Return whether a rank has entered a collective, as far as is known."""
        there = standings.get(rank)
        if there is None or there.step < standing.step:
            return False
        ops = self.lists[rank]
        entry = (at for at, op in enumerate(ops) if (op.what.kind, op.what.microbatch) == name)
        return there.step > standing.step or there.at > next(entry, -1)


def _texts(op: Op) -> list[str]:
    return [str(value) for value in op.writes]


def _read(op: Op) -> str:
    return str(op.reads[0])
