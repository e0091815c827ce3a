"""Problems: what the checkers find."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a program.

    `proof`: the name of the proof that failed. `what`: the sentence for the user. `culprits`:
    (rank, index in the rank's list) of the passes to mark.
    """

    proof: str
    what: str
    culprits: tuple[tuple[int, int], ...] = ()
