"""Keeps the frames that a worker has made until the balancer frees them."""

from collections.abc import Sequence

from ...balancer.job.messages import PulledFrames, PullFrames
from ..codec.contents import Buffer


class FrameStore:
    """The frames of what a worker keeps, by serial; a thread beside serves them (PullServer).

    A serial is never used again, so that no message's delay, loss or repetition gives a trainer
    other bytes than were announced: it gets these, or none.
    """

    def __init__(self) -> None:
        self.token = 0
        self._frames: dict[int, list[Buffer]] = {}

    def keep(self, serial: int, frames: list[Buffer]) -> None:
        """Keep frames, which are not written any more."""
        self._frames[serial] = frames

    def find_frames(self, serial: int) -> list[Buffer]:
        """Return all frames under a serial; none where it is gone."""
        return self._frames.get(serial, [])

    def free(self, serials: Sequence[int]) -> None:
        """Forget what is kept under serials; unknown and repeated ones are ignored."""
        for serial in serials:
            self._frames.pop(serial, None)

    def answer(self, request: PullFrames) -> tuple[PulledFrames, list[Buffer]]:
        """Return the answer to a trainer, and the frames: those that it names, or all, or none."""
        frames = self.find_frames(request.serial) if request.token == self.token else []
        if request.frames:
            is_there = max(request.frames) < len(frames) >= len(request.frames)
            frames = [frames[number] for number in request.frames] if is_there else []
        return PulledFrames(request.number, len(frames)), frames
