"""Sends pieces to trainers that cannot pull them: asks their worker, and passes the frames on.

Nothing is kept here but who waits for what. A trainer asks again as long as it lacks a piece, and
the worker is asked once in a while however many ask.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..parties.run_attempt import Lost
from .effects import Send
from .messages import PullFrames, RelayedPiece

# A worker is asked again for a piece, and a question that is not repeated forgotten, after so long.
AGAIN_S, FORGOTTEN_S = 1.0, 10.0


@dataclass(slots=True)
class _Question:
    """A piece that a worker was asked for, and for whom: (peer, number of the piece)."""

    asked_at: float = -math.inf
    waiting: dict[tuple[bytes, int], Lost] = field(default_factory=dict)


class Relay:
    """The pieces of a job that workers are asked for, by worker and serial."""

    def __init__(self, find_token: Callable[[bytes], int]) -> None:
        self._find_token = find_token
        self._questions: dict[tuple[bytes, int], _Question] = {}

    def ask(self, lost: Lost, now: float) -> list[Send]:
        """Take what a trainer lacks; return what to send to workers."""
        asked = []
        for number in lost.message.pieces:
            piece = lost.ticket.pieces[number]
            if piece.worker is None:
                continue
            question = self._questions.setdefault((piece.worker, piece.serial), _Question())
            if now >= question.asked_at + AGAIN_S:
                question.asked_at = now
                token, serial = self._find_token(piece.worker), piece.serial
                asked.append(Send(piece.worker, PullFrames(serial, token, serial, ())))
            question.waiting[lost.peer, number] = lost
        return asked

    def take(self, worker: bytes, serial: int) -> list[tuple[Lost, int]]:
        """Return who has waited for what a worker has answered, and for which piece."""
        question = self._questions.pop((worker, serial), _Question())
        return [(lost, number) for (_, number), lost in question.waiting.items()]

    def tick(self, now: float) -> None:
        """Forget questions that are not repeated."""
        for key, question in [*self._questions.items()]:
            if now > question.asked_at + FORGOTTEN_S:
                del self._questions[key]


def relayed(lost: Lost, number: int, frames: Sequence[object]) -> Send:
    """Return a piece for a trainer that waits for it."""
    of = lost.message
    message = RelayedPiece(of.run, of.rank, of.index, of.version, number, len(frames))
    return Send(lost.peer, message, tuple(frames))
