"""Runs a process of multiprocessing's that a trainer has sent, in a child of its fork server."""

import multiprocessing.process
import os
import pickle
from collections.abc import Sequence
from multiprocessing import resource_tracker
from typing import Any

from .request import adopt

_resource_tracker: Any = resource_tracker._resource_tracker
_received: list[int] = []  # the descriptors that came with the process


class SentDescriptor:
    """A descriptor of the trainer's, as its place among those that come with a process."""

    def __init__(self, place: int) -> None:
        self.place = place

    def detach(self) -> int:
        """Return the descriptor in the process."""
        return _received[self.place]


def run_process(descriptors: Sequence[int]) -> int:
    """Be the process that came with `descriptors`; return its exit code."""
    request, _, parent, tracker, *_received[:] = descriptors
    _resource_tracker._fd = tracker
    current = multiprocessing.process.current_process()
    with os.fdopen(request, "rb") as stream:
        adopt(pickle.load(stream))
        current._inheriting = True  # type: ignore[attr-defined]
        try:
            process = pickle.load(stream)
        finally:
            del current._inheriting  # type: ignore[attr-defined]
    code: int = process._bootstrap(parent)
    return code
