"""Sends pieces to trainers that cannot pull them: asks their worker, and passes the frames on.

Nothing is kept here but who waits for what. A trainer asks again as long as it lacks a piece, and
the worker is asked once in a while however many ask.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..parties.run_attempt import Lost
from ..protocol.messages import Message
from .effects import Send
from .messages import RelayedPiece, SendFrames, SentFrames

# A worker is asked for a piece, and a question forgotten that nobody repeats, after so long.
AGAIN_S, FORGOTTEN_S = 1.0, 10.0


@dataclass(slots=True)
class _Question:
    """A piece that a worker was asked for, and for whom: (peer, number of the piece)."""

    asked_at: float
    waiting: dict[tuple[bytes, int], Lost] = field(default_factory=dict)


class Relay:
    """The pieces of a job that workers are asked for, by worker and serial."""

    def __init__(self) -> None:
        self._questions: dict[tuple[bytes, int], _Question] = {}

    def ask(self, lost: Lost, now: float) -> list[tuple[bytes, Message]]:
        """Take what a trainer lacks; return what to send to workers."""
        asked: list[tuple[bytes, Message]] = []
        for number in lost.message.pieces:
            piece = lost.ticket.pieces[number]
            if piece.worker is None:
                continue
            key = piece.worker, piece.serial
            question = self._questions.get(key)
            if question is None or now >= question.asked_at + AGAIN_S:
                question = self._questions.setdefault(key, _Question(now))
                question.asked_at = now
                asked.append((piece.worker, SendFrames(piece.serial)))
            question.waiting[lost.peer, number] = lost
        return asked

    def take(
        self, worker: bytes, sent: SentFrames, frames: Sequence[object]
    ) -> tuple[list[Send], list[tuple[Lost, int]]]:
        """Take a worker's answer; return what to send to trainers, and what is gone."""
        question = self._questions.pop((worker, sent.serial), None)
        if question is None:
            return [], []
        if not sent.frames:
            return [], [(lost, number) for (_, number), lost in question.waiting.items()]
        return [
            Send(peer, _relayed(lost, number, len(frames)), tuple(frames))
            for (peer, number), lost in question.waiting.items()
        ], []

    def tick(self, now: float) -> None:
        """Forget questions that nobody repeats."""
        for key, question in [*self._questions.items()]:
            if now > question.asked_at + FORGOTTEN_S:
                del self._questions[key]


def _relayed(lost: Lost, number: int, frames: int) -> RelayedPiece:
    of = lost.message
    return RelayedPiece(of.run, of.rank, of.index, of.version, number, frames)
