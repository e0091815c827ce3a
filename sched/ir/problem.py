"""Problems: what the checkers find."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a program.

    `proof`: the name of the proof that failed. `message`: the sentence for the user. `culprits`:
    (rank, index in the rank's list) of the passes to mark.
    """

    proof: str
    message: str
    culprits: tuple[tuple[int, int], ...] = ()
