"""Drive a walk over process groups: wait with a deadline, explain delays, write measured steps."""

import atexit
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ...simulation.measured import MeasuredStep, dump_step
from ...simulation.timeline import Timeline
from ..links.meeting import gather_objects
from ..links.process_groups import PeerLostError
from .board import Board
from .waiting import Pipelines
from .walk import Walk

T = TypeVar("T")


class PipelineStalledError(RuntimeError):
    """A rank did not get what it waits for: a peer is dead, stopped or hangs.

    `waits_for`: who waits for whom, from this rank to the one that holds all up.
    """

    def __init__(self, waits_for: str, reason: str) -> None:
        super().__init__(f"{waits_for} ({reason})")
        self.waits_for = waits_for


def drive(walk: Walk, deadline_s: float, board: Board, known: Pipelines, rank: int) -> None:
    """Run a walk to its end.

    Raises PipelineStalledError if a transfer is not over within the deadline or a peer is lost. An
    error of a pass is raised with a note that says which it was; other ranks are told.
    """
    arrived: Tensor | None = None
    try:
        while True:
            arrived = walk.send(arrived).wait(deadline_s)
    except StopIteration:
        return
    except PeerLostError as error:
        raise explain(error, board, known, rank) from error
    except Exception as error:
        place = f"{known.lists[rank][board.waits.at].what} of rank {rank}"
        error.add_note(f"in pass {place}, step {board.step}")
        board.give_up(f"{place} raised {type(error).__name__}: {error}")
        atexit.register(_leave)
        raise


def explain(error: Exception, board: Board, known: Pipelines, rank: int) -> PipelineStalledError:
    """Return the error that says who waits for whom, also in pipelines whose ranks are behind.

    The process ends at exit without waiting for the process groups.
    """
    standings = board.give_up("")
    text = known.explain(rank, standings)
    for peer, there in sorted(standings.items()):
        if peer != rank and there.failed not in ("", "failed"):  # an error of its own
            text += f"; rank {peer}: {there.failed}"
    for number, standings_there in sorted(board.elsewhere().items()):
        late = known.late(standings[rank].step, standings_there)
        silent = [peer for peer, there in sorted(standings_there.items()) if there.silent_s]
        if behind := silent or late:
            text += f"; in pipeline {number}, {known.explain(behind[0], standings_there)}"
    atexit.register(_leave)
    return PipelineStalledError(text, str(error).splitlines()[0])


def meet(message: T, task: str, device: torch.device, deadline_s: float, board: Board) -> list[T]:
    """Return what every process of the job gives, by rank. Raises as `Pipeline.exchange` does."""
    try:
        return gather_objects(message, dist.group.WORLD, device, deadline_s, task)
    except PeerLostError as error:
        board.give_up(str(error))
        atexit.register(_leave)
        raise PipelineStalledError(str(error), f"it could not {task}") from error


def _leave() -> None:
    """End the process, at exit, without waiting for process groups, whose threads may never end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


# In a job's environment: the folder that measured steps are written to, for `counterpoise profile`.
TIMELINES_VARIABLE = "COUNTERPOISE_TIMELINES"


def write_step(
    folder: Path, number: int, timeline: Timeline, held: Sequence[Mapping[str, int]]
) -> None:
    """Write a step's timeline and what its microbatches held as `step-NUMBER.json`, at once."""
    folder.mkdir(parents=True, exist_ok=True)
    making = folder / f".step-{number}"
    microbatches = tuple(held) if all(held) else ()
    making.write_text(dump_step(MeasuredStep(timeline, microbatches)) + "\n", "utf-8")
    # Readers see whole files only.
    making.replace(folder / f"step-{number}.json")
