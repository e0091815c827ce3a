"""Explains who waits for whom, from every rank's place in its list to the rank that blocks all.

All ranks know all lists, so a rank only has to publish its step, its place in its list and whether
it waits there. The chain starts at the rank that asks and goes on to whom that one waits for, until
a rank that does not wait, or of which nothing is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..compiled import Collective, Op


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of a rank when it last published it.

    `at`: its operation. `waiting`: the text of the value that it waits for, "" while it computes.
    `since_s`: how long it has been there. `failed`: the error it has given up with. `beat`: a
    number that grows while the rank's process runs. `silent_s`: how long the reader has not seen it
    grow, 0 if it does.
    """

    step: int
    at: int
    waiting: str = ""
    since_s: float = 0.0
    failed: str = ""
    beat: int = 0
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pipelines:
    """A pipeline as all ranks know it: every rank's operations, and the barriers' collectives.

    `peers`: by rank, those with which it enters collectives; all of them by default.
    """

    lists: Sequence[Sequence[Op]]
    collectives: Mapping[str, Collective]
    peers: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def explain(self, me: int, standings: Mapping[int, Standing]) -> str:
        """Return a sentence that leads from a waiting rank to the one that holds it up.

        `standings`: by rank; ranks of which nothing is known are left out.

        >>> from ..compiled import compile_program
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
            culprits = self._awaited(rank, standing, standings)
            parts.append(self._describe(rank, standing, culprits))
            if not culprits:
                break
            # Who is not heard of holds up the others; the chain need not go through them.
            silent = [r for r in culprits if r in standings and _is_silent(standings[r])]
            rank = (silent or culprits)[0]
        # Standings are old where the store is gone, and the chain may miss who is the cause.
        parts += [
            self._describe(peer, standing, [])
            for peer, standing in sorted(standings.items())
            if _is_silent(standing) and peer not in seen
        ]
        return f"step {standings[me].step}: " + "; ".join(parts)

    def _describe(self, rank: int, standing: Standing, culprits: Sequence[int]) -> str:
        ops, since = self.lists[rank], f"since {standing.since_s:.0f} s"
        whom = " and ".join(map(str, culprits)) or "unknown"
        if standing.at >= len(ops):
            text = f"rank {rank} is at the end of step {standing.step} {since}"
            text += f" and waits for rank {whom}" if culprits else ""
        elif standing.waiting:
            place = ops[standing.at].what
            text = f"rank {rank} at {place} waits {since} for {standing.waiting} of rank {whom}"
        else:
            text = f"rank {rank} is at {ops[standing.at].what} {since}"
        if _is_silent(standing):
            text += f" (its process is not heard of since {standing.silent_s:.0f} s)"
        return text

    def _awaited(
        self, rank: int, standing: Standing, standings: Mapping[int, Standing]
    ) -> list[int]:
        """Return the ranks that have not done their part in what a rank waits for."""
        if _is_silent(standing):
            return []
        if standing.at >= len(self.lists[rank]):
            return self._behind(rank, standing, standings)
        if not standing.waiting:
            return []
        ops, value = self.lists[rank], standing.waiting
        maker = next((op for op in ops if value in map(str, op.writes)), None)
        if maker is not None and maker.source is not None:
            return [maker.source]
        if maker is not None and maker.what.kind in self.collectives:
            return self._not_entered(rank, maker, standing, standings)
        # Its own value: a send that its receivers have not taken.
        sends = (op for op in ops if op.targets and str(op.reads[0]) == value)
        return [target for op in sends for target in op.targets]

    def _behind(
        self, rank: int, standing: Standing, standings: Mapping[int, Standing]
    ) -> list[int]:
        """Return the ranks that a rank at its step's end waits for: who is not there, or silent."""
        standings_there = {peer: there for peer, there in standings.items() if peer != rank}
        missing = [peer for peer in range(len(self.lists)) if peer not in {*standings_there, rank}]
        silent = [peer for peer, there in standings_there.items() if _is_silent(there)]
        return self.late(standing.step, standings_there) or sorted(silent) or missing

    def late(self, step: int, standings: Mapping[int, Standing]) -> list[int]:
        """Return the ranks that are not at the end of a step, or of a later one."""
        return [
            rank
            for rank, there in sorted(standings.items())
            if there.step < step or (there.step == step and there.at < len(self.lists[rank]))
        ]

    def _not_entered(
        self, rank: int, entry: Op, standing: Standing, standings: Mapping[int, Standing]
    ) -> list[int]:
        """Return the ranks whose entry into a collective is missing."""
        collective = self.collectives[entry.what.kind]
        peers = self.peers.get(rank, range(len(self.lists)))
        name = (entry.what.kind, entry.what.microbatch)
        missing = []
        for peer in [peers[collective.root]] if collective.operation == "broadcast" else peers:
            there, ops = standings.get(peer), self.lists[peer]
            at = (n for n, op in enumerate(ops) if (op.what.kind, op.what.microbatch) == name)
            # In a step before, in this one's list before its entry, or nothing is known of it.
            if peer != rank and (
                there is None or (there.step, there.at) <= (standing.step, next(at, -1))
            ):
                missing.append(peer)
        return missing


def _is_silent(standing: Standing) -> bool:
    """Return whether a rank's process has ended or stopped without a word."""
    return standing.silent_s > 0 and not standing.failed
