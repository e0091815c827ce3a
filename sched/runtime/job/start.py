"""Start a pipeline: arrange its parts, check, connect, and wait for the other ranks.

Encoders are in the pipeline's bubbles, or units on ranks of their own.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh

from ...ir.program import Program
from ...transforms.generator_passes import drop_last_stage, with_generator
from ..compiled import collectives
from ..encoders.placement import EncoderSpec
from ..encoders.travelling import TravellingImages
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
from ..settings import ScheduleFunction, StageOptions, StepLoss, is_registered
from ..stage.generator import GeneratorSpec
from ..units.layout import Units
from ..units.place import UnitPlace, place_on_mesh, place_units
from ..units.plan import UnitPlan, plan_on_mesh, plan_units
from ..vocabulary.shard import VocabParallel
from ..vocabulary.step import VocabularyPart, refuse_other_passes

# Microbatches of the first program, for each rank: every schedule has one for as many.
_PROBE = 2
# Processes need not be equally quick to start.
_START_S = 60.0
# Those that wait give up at about the same time.
_LISTEN_S = 5.0
_OUTPUT = frozenset("ST") | frozenset("LEG")


@contextmanager
def report_missing_ranks() -> Iterator[None]:
    """Raise PipelineStalledError, with who is missing, where processes do not come at the start."""
    try:
        yield
    except (PeerLostError, dist.DistError) as error:
        text = str(error).splitlines()[0]
        if error.__cause__ is not None or not isinstance(error, PeerLostError):  # one of torch's
            text = _from_all(text)
        raise PipelineStalledError(text, "while the pipeline was made") from error


def _from_all(fault: str) -> str:
    """Return what stopped each process that comes here in time, else who does not."""
    if "cpu:gloo" not in dist.get_backend_config():
        return fault
    cpu, task = torch.device("cpu"), "say what it waits for"
    try:
        faults = gather_objects(fault, dist.group.WORLD, cpu, _LISTEN_S, task, FAULTS)
    except PeerLostError as named:
        return f"{named}: {fault}"
    return "; ".join(dict.fromkeys(faults))


def start_deadline(deadline_s: float) -> float:
    """Return how long processes wait for each other before the first step."""
    return max(deadline_s, _START_S)


@dataclass(frozen=True, slots=True)
class ResumedSchedule:
    """A schedule that goes on with programs that were saved, by ranks and microbatches.

    `schedule`: makes all others. `in_units`: whether the saved ones are for units alone: a pipeline
    with encoders in its bubbles has others.
    """

    saved: Mapping[tuple[int, int], Program]
    schedule: ScheduleFunction
    in_units: bool = False

    def __call__(self, ranks: int, microbatches: int) -> Program:
        """Return the program of a number of microbatches, for a mesh."""
        if not self.in_units and (program := self.saved.get((ranks, microbatches))):
            return program
        return self.schedule(ranks, microbatches)


def separate_encoders(
    encoders: Sequence[EncoderSpec] | TravellingImages,
) -> tuple[Sequence[EncoderSpec], TravellingImages | None]:
    """Return encoders whose passes are in the schedule, and the one whose images travel.

    Raises ValueError for other values than one of the two.
    """
    if isinstance(encoders, TravellingImages):
        return (), encoders
    specs = encoders if isinstance(encoders, Sequence) else [encoders]
    if stranger := next((spec for spec in specs if not isinstance(spec, EncoderSpec)), None):
        raise ValueError(
            f"encoders has a {type(stranger).__name__}; give a list of EncoderSpecs, which run "
            "beside the passes, or TravellingImages alone, which are encoded before them"
        )
    if specs is not encoders:
        raise ValueError("encoders is an EncoderSpec; give a list: [EncoderSpec(...)]")
    return specs, None


PlanOf = Callable[[int], UnitPlan]


def arrange(
    where: DeviceMesh | Units,
    schedule: ScheduleFunction,
    encoders: Sequence[EncoderSpec],
    generator: GeneratorSpec | None,
    deadline_s: float,
) -> tuple[UnitPlace, PlanOf]:
    """Return this process' place, and the plan of a number of microbatches of each replica.

    All processes of the job call this together. Raises ValueError and PeerLostError as
    `place_on_mesh` and `place_units` do.
    """
    if not isinstance(where, Units):
        place = place_on_mesh(where, start_deadline(deadline_s))
        make: Callable[[int], Program] = partial(schedule, place.ranks)
        make = _add_generator(make) if generator else make
        return place, cache(lambda count: plan_on_mesh(make(count)))
    _refuse_other_units(where, encoders, generator)
    place = place_units(where, start_deadline(deadline_s))
    base = _replica_programs(where, schedule, generator)
    layers = [len(spec.modules) for spec in encoders]
    return place, cache(lambda count: plan_units(base(count), where, layers))


def first_count(units: Units) -> int:
    """Return the microbatches of each replica in the first program, in which every rank has some.

    Stages and channels do not depend on how many there are.
    """
    return _PROBE * units.backbone.pp * max((unit.dp for unit in units.sizes[1:]), default=1)


def _replica_programs(
    units: Units, schedule: ScheduleFunction, generator: GeneratorSpec | None
) -> Callable[[int], Program]:
    """Return the function that makes the program of one replica of the language model."""
    ranks = units.backbone.pp
    if isinstance(schedule, ResumedSchedule):
        again = _replica_programs(units, schedule.schedule, generator)
        saved = schedule.saved if schedule.in_units else {}
        return lambda count: saved.get((ranks, count)) or again(count)
    make = partial(schedule, ranks)
    if generator and units.generator is None:
        return _add_generator(make)
    if generator and is_registered(schedule):
        return _replace_last_stage(make, partial(schedule, ranks + 1))
    return make


def _add_generator(make: Callable[[int], Program]) -> Callable[[int], Program]:
    """Return programs with a generator on the last stage's rank, if they have none."""
    return lambda microbatches: with_generator(make(microbatches))


def _replace_last_stage(
    make: Callable[[int], Program], longer: Callable[[int], Program]
) -> Callable[[int], Program]:
    """Return programs whose last stage goes on while a generator has its microbatch.

    `longer`: programs of one more rank, whose place the generator takes. Where stages are in
    another order than ranks, the last stage waits for the generator.
    """

    def make_shorter(microbatches: int) -> Program:
        program = make(microbatches)
        if program.placement != tuple(range(len(program.ranks))) or program.barriers:
            return program
        return drop_last_stage(longer(microbatches)) or program

    return make_shorter


def _refuse_other_units(
    units: Units, encoders: Sequence[EncoderSpec], generator: GeneratorSpec | None
) -> None:
    """Raise ValueError for units without something to run, and encoders without a unit."""
    if not units.beside:
        raise ValueError("the backbone is the only unit; give encoder=, generator= or a mesh")
    if bool(encoders) != (units.encoder is not None):
        raise ValueError(
            "an encoder's unit and encoders= go together: give both, or a mesh to run encoders in "
            "the language model's bubbles"
        )
    if units.generator is not None and generator is None:
        raise ValueError("the units have a generator's; give generator= what runs there")


def vocabulary_part(
    program: Program,
    vocabulary: VocabParallel | None,
    loss: StepLoss,
    place: UnitPlace,
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
        if loss.function is None:
            raise ValueError("give loss=, a function of the last stage's output and the labels")
        return None
    if vocabulary is None or loss.function is not None:
        raise ValueError(
            f"the schedule {program.name!r} computes the loss in vocabulary passes; give "
            "vocabulary=VocabParallel(...), whose options are the loss', and no loss="
        )
    refuse_other_passes(program, vocabulary)
    if place.seat >= place.ranks:  # a rank that only has encoders
        return None
    return VocabularyPart(
        vocabulary,
        vocabulary.shard(place.seat, place.ranks, place.device),
        reports_loss=place.seat == program.placement[-1],
        autocast=options.autocast,
        labels=loss.labels[0],
        words=options.inputs[0] if options.inputs else "input_ids",
    )


def connect(
    first_program: Program,
    channels: Sequence[Channel],
    place: UnitPlace,
    deadline_s: float,
    sharers: Sequence[tuple[int, ...]] = (),
) -> tuple[Groups, Board]:
    """Connect to the other ranks and start to publish standings; all ranks do it together.

    `sharers`: the sets of a pipeline's ranks that have parameters in common. Raises PeerLostError.
    """
    limit_s = start_deadline(deadline_s)
    used = {collective.communicator for collective in collectives(first_program).values()}
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


def _refuse_other_groups(group_names: list[Any], place: UnitPlace, deadline_s: float) -> None:
    """Raise ValueError in all processes that would make other groups, or in another order.

    torch would connect what does not belong together, or wait. `group_names`: in order.
    """
    names_by_process = gather_objects(group_names, dist.group.WORLD, place.device, deadline_s)
    for process, names in enumerate(names_by_process):
        for first, theirs in zip(names_by_process[0], names, strict=True):
            pairs = zip_longest(first, theirs)
            at, pair = next(((n, p) for n, p in enumerate(pairs) if p[0] != p[1]), (0, ()))
            if pair:
                raise ValueError(
                    f"as group {at}, process 0 would make {pair[0]!r} and process {process} "
                    f"{pair[1]!r}; let schedule= make the same program on all ranks, in which "
                    "nothing follows the order of a set"
                )


def post_board(place: UnitPlace, deadline_s: float) -> Board:
    """Return this rank's board, in a store of its own that the mesh's first process hosts."""
    first = place.pipelines[0][0]
    process = dist.get_rank()
    limit_s = start_deadline(deadline_s)
    limit = timedelta(seconds=limit_s)
    address = ("", 0)
    store = None
    if process == first:
        host = os.environ.get("MASTER_ADDR") or socket.gethostname()
        store = TCPStore(host, 0, is_master=True, timeout=limit, wait_for_workers=False)
        address = host, store.port
    address = gather_objects(address, dist.group.WORLD, place.device, limit_s)[first]
    if store is None:
        store = TCPStore(*address, is_master=False, timeout=limit, wait_for_workers=False)
    # Of units, ranks without stages have standings, too.
    followed = first_pipelines(place.pipelines)[process]
    return Board(store, place.rank, place.pipelines, followed, deadline_s)
