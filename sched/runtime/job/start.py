"""Start a pipeline: find its place, check, connect, and wait for the other ranks."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ...ir.program import Program
from ...ir.registry import schedule as make_program
from ..compiled import collectives
from ..execution.board import Board
from ..execution.drive import PipelineStalledError
from ..links.meeting import FAULTS, gather_objects
from ..links.process_groups import (
    Channel,
    Groups,
    PeerLostError,
    first_pipelines,
    make_groups,
    report_lost,
)
from ..stage.modules import LossFunction, StageOptions
from ..units.place import Place
from ..vocabulary.shard import VocabParallel
from ..vocabulary.step import VocabularyPart, refuse_other_passes

# Processes need not be equally quick to start.
_START_S = 60.0
# Those that wait give up at about the same time.
_LISTEN_S = 5.0
_OUTPUT = frozenset("ST") | frozenset("LEG")


@contextmanager
def report_missing_ranks() -> Iterator[None]:
    """Raise PipelineStalledError where processes do not come while the pipeline is made.

    Where torch only knows that something did not come, those that wait meet to find who is missing.
    """
    try:
        yield
    except (PeerLostError, dist.DistError) as error:
        text = str(error).splitlines()[0]
        if error.__cause__ is not None or not isinstance(error, PeerLostError):  # one of torch's
            text = _from_all(text)
        raise PipelineStalledError(text, "while the pipeline was made") from error


def _from_all(own: str) -> str:
    """Return what stopped each process that comes here in time, else who does not."""
    if "cpu:gloo" not in dist.get_backend_config():
        return own
    cpu, what = torch.device("cpu"), "say what it waits for"
    try:
        found = gather_objects(own, dist.group.WORLD, cpu, _LISTEN_S, what, FAULTS)
    except PeerLostError as named:
        return f"{named}: {own}"
    return "; ".join(dict.fromkeys(found))


def start_deadline(deadline_s: float) -> float:
    """Return how long processes wait for each other before the first step."""
    return max(deadline_s, _START_S)


def generator_of(
    schedule: str | Callable[[int, int], Program], ranks: int, options: Mapping[str, Any]
) -> Callable[[int], Program]:
    """Return the function that makes the program of a number of microbatches."""
    if isinstance(schedule, str):
        return lambda microbatches: make_program(
            schedule, ranks=ranks, microbatches=microbatches, **options
        )
    if options:
        raise ValueError("options are a registered schedule's; give them to your own function")
    return lambda microbatches: schedule(ranks, microbatches)


def vocabulary_part(
    program: Program,
    vocabulary: VocabParallel | None,
    loss: LossFunction | None,
    place: Place,
    options: StageOptions,
) -> VocabularyPart | None:
    """Return this rank's part of the vocabulary layers, None for a schedule without them.

    Raises ValueError if schedule, `vocabulary` and `loss` do not fit together.
    """
    kinds = {item.kind for row in program.ranks for item in row}
    if not kinds & _OUTPUT:
        if vocabulary is not None:
            raise ValueError(
                f"the schedule {program.name!r} has no vocabulary passes; take one such as "
                "'1f1b-alg2', or put the output layer into the last stage"
            )
        if loss is None:
            raise ValueError("give loss=, a function of the last stage's output and the labels")
        return None
    if vocabulary is None or loss is not None:
        raise ValueError(
            f"the schedule {program.name!r} computes the loss in vocabulary passes; give "
            "vocabulary=VocabParallel(...), whose options are the loss', and no loss="
        )
    refuse_other_passes(program, vocabulary)
    if place.seat >= place.ranks:  # a rank that only has encoders
        return None
    shard = vocabulary.shard(place.seat, place.ranks, place.device)
    return VocabularyPart(
        vocabulary,
        shard,
        reports_loss=place.seat == program.placement[-1],
        autocast=options.autocast,
        labels=options.labels[0],
        words=options.inputs[0] if options.inputs else "input_ids",
    )


def connect(
    first_program: Program,
    channels: Sequence[Channel],
    place: Place,
    deadline_s: float,
    sharers: Sequence[tuple[int, ...]] = (),
) -> tuple[Groups, Board]:
    """Connect to the other ranks and start to publish standings; all ranks do it together.

    `sharers`: the sets of a pipeline's ranks that have parameters in common. Raises PeerLostError.
    """
    limit_s = start_deadline(deadline_s)
    used = {found.communicator for found in collectives(first_program).values()}
    members = place.communicator_ranks(used)
    _refuse_other_groups([channels, list(members), sharers], place, limit_s)
    with report_lost():
        groups = make_groups(place.pipelines, channels, members, place.device, deadline_s, sharers)
        board = post_board(place, deadline_s)
    groups.warm_up(limit_s)
    # After this all boards are there, so that no rank reads one that is missing.
    place.gather(None, limit_s)
    board.start()
    return groups, board


def _refuse_other_groups(own: list[Any], place: Place, deadline_s: float) -> None:
    """Raise ValueError in all processes that would make other groups, or in another order.

    torch would connect what does not belong together, or wait. `own`: the names of the groups.
    """
    found = gather_objects(own, dist.group.WORLD, place.device, deadline_s)
    for process, names in enumerate(found):
        for first, other in zip(found[0], names, strict=True):
            pairs = zip_longest(first, other)
            at, pair = next(((n, p) for n, p in enumerate(pairs) if p[0] != p[1]), (0, ()))
            if pair:
                raise ValueError(
                    f"as group {at}, process 0 would make {pair[0]!r} and process {process} "
                    f"{pair[1]!r}; let schedule= make the same program on all ranks, in which "
                    "nothing follows the order of a set"
                )


def post_board(place: Place, deadline_s: float) -> Board:
    """Return this rank's board, in a store of its own that the mesh's first process hosts."""
    first = place.pipelines[0][0]
    own = dist.get_rank()
    limit_s = start_deadline(deadline_s)
    limit = timedelta(seconds=limit_s)
    address = ("", 0)
    store = None
    if own == first:
        host = os.environ.get("MASTER_ADDR") or socket.gethostname()
        store = TCPStore(host, 0, is_master=True, timeout=limit, wait_for_workers=False)
        address = host, store.port
    address = gather_objects(address, dist.group.WORLD, place.device, limit_s)[first]
    if store is None:
        store = TCPStore(*address, is_master=False, timeout=limit, wait_for_workers=False)
    # Of units, ranks without stages have standings, too.
    followed = first_pipelines(place.pipelines)[own]
    return Board(store, place.rank, place.pipelines, followed, deadline_s)
