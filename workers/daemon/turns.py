"""Shares one worker's time among jobs: deficit round robin on seconds of work.

Shreedhar and Varghese, "Efficient fair queuing using deficit round robin", SIGCOMM 1995. In a round
each job is given a quantum, in proportion to its weight, and works until it has used it up; the
next begins when no job that has work has time left. What a sample takes is known when it is
done, so a job may exceed its quantum by one piece of work, and has that much less the next time.
"""

from collections.abc import Collection

# What a job of weight 1 is given in a round: far more than a turn costs, little to wait for.
QUANTUM_S = 0.02
# A job that has no work when its turn comes saves up so many quanta: its next part may be on its
# way, and a job whose balancer answers late would have less than its share.
SAVED = 10


class DecodeTurns:
    """Turns of jobs with weights.

    A job without work passes its turn, and saves up what it was given to some extent.

    >>> turns = DecodeTurns()
    >>> turns.add("a", 2.0); turns.add("b", 1.0)
    >>> taken = []
    >>> for _ in range(60):
    ...     taken.append(turns.next({"a", "b"}))
    ...     turns.charge(taken[-1], QUANTUM_S / 4)
    >>> taken.count("a"), taken.count("b")
    (40, 20)
    >>> turns.next({"b"})
    'b'
    """

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        # Seconds that each may still work in this round.
        self._left: dict[str, float] = {}

    def add(self, job: str, weight: float) -> None:
        """Add a job, from the next round on."""
        self._weights[job], self._left[job] = weight, 0.0

    def remove(self, job: str) -> None:
        """Remove a job."""
        del self._weights[job], self._left[job]

    def next(self, hungry: Collection[str]) -> str:
        """Return the next job of those that have work: one at least."""
        if len(hungry) == 1:
            return next(iter(hungry))
        while True:
            for job, left in self._left.items():
                if left > 0 and job in hungry:
                    return job
            # The next round, or as many as it takes until one job has paid for its long piece.
            quanta = {job: QUANTUM_S * weight for job, weight in self._weights.items()}
            rounds = 1 + int(min(max(0.0, -self._left[job]) / quanta[job] for job in hungry))
            for job, quantum in quanta.items():
                self._left[job] = min(self._left[job] + rounds * quantum, SAVED * quantum)

    def charge(self, job: str, seconds: float) -> None:
        """Note that a job has worked for a time in which others had work, too."""
        self._left[job] -= seconds
