"""What a job's balancer and its trainers tell each other: a rank takes its microbatches by credit.

A process plays one rank or several; several may share a rank, and each of them gets all of its
microbatches. Every message may be repeated, lost or late.
"""

from typing import get_args

from ..protocol.messages import Bye, PeerRejected, UnknownPeer
from ..protocol.parts import Cost, Count, EpochPosition, Ready
from ..protocol.records import VERSION, ArrayRecord, Integer
from ..run.tasks import MicrobatchFacts

# The bits of a version that are the ticket's; those before say which attempt at the run gives it.
GENERATION = 20
# Characters of a name that texts quote.
MAX_NAME = 80


class JoinJob(ArrayRecord, frozen=True):
    """A trainer process has started: it plays these ranks, as one of `sharers` of each of them.

    job, layout: JSON; all must bring the same. incarnation: another in each process that has its
    peer's name. name: the process, for messages. version: that of counterpoise.
    """

    ranks: tuple[Count, ...]
    sharer: Count
    sharers: Count
    job: str
    layout: str
    incarnation: Integer
    name: str = ""
    version: str = VERSION

    @property
    def title(self) -> str:
        """What texts call the process."""
        return f"{self.name or f'the process of ranks {self.ranks}':.{MAX_NAME}}"


class BeginRun(ArrayRecord, frozen=True):
    """The process begins run number `run` at `at`, or goes on with it at another balancer.

    epoch, costs, samples: as in RunStart of run/tasks. had: how many microbatches all ranks of
    this process have had; served: as many of its ranks have had one more. here: the position of
    that one. holes: samples that cannot be used, known: steps whose holes are known to be final.
    """

    run: Count
    epoch: Count
    at: EpochPosition
    costs: str
    samples: Integer
    here: EpochPosition
    had: Count
    served: Count
    holes: tuple[Integer, ...]
    known: tuple[Integer, ...]


class WantBatches(ArrayRecord, frozen=True):
    """Which microbatches of its ranks a process may be sent, and which are here.

    wants: (rank, upto, have): those before number `upto` may be sent; those before `have` are here,
    and may be freed. waited_ms: in all, for diagnostics only.
    """

    run: Count
    wants: tuple[tuple[Count, Count, Count], ...]
    waited_ms: Count


class LostPieces(ArrayRecord, frozen=True):
    """Pieces of a microbatch cannot be pulled from their workers, and why.

    pieces: their numbers in GiveBatch. The balancer sends them itself, or has them made again where
    they are gone.
    """

    run: Count
    rank: Count
    index: Count
    version: Count
    pieces: tuple[Count, ...]
    reason: str


class CountLabels(ArrayRecord, frozen=True):
    """The label tokens of a rank's batches of a step; asks for the total of all ranks."""

    run: Count
    rank: Count
    step: Count
    tokens: Cost


class TrainerBeat(ArrayRecord, frozen=True):
    """The process is alive; it asks what its next microbatch waits for if `asks`."""

    number: Count
    asks: bool


class LeaveJob(ArrayRecord, frozen=True):
    """The process is done with the job. The answer is Bye when no other needs this balancer."""


class RunBegun(ArrayRecord, frozen=True):
    """All processes have begun the run."""

    run: Count


class GivenPiece(ArrayRecord, frozen=True):
    """Where a piece of a microbatch is: the worker's token, and its number there.

    frames: their bytes. places: of its samples in the microbatch; of a batch none.
    """

    token: Count
    serial: Count
    frames: tuple[Count, ...]
    places: tuple[Count, ...]


class GiveBatch(ArrayRecord, frozen=True):
    """A rank's microbatch number `index` since the run began; a later version is of the same.

    Versions of other GENERATIONs have other pieces: nothing of an earlier one is of use for them.
    is_batch: the one piece is a batch. No piece: there is no batch (is_batch), or no sample. first:
    the index of the microbatch's first sample in the source, -1 for none. labels (two or none) and
    label_tokens (-1 if they were not counted) are those of LoadedBatch of run/tasks.
    """

    run: Count
    index: Count
    version: Count
    is_batch: bool
    pieces: tuple[GivenPiece, ...]
    first: Integer
    facts: MicrobatchFacts
    labels: tuple[Count, ...]
    label_tokens: Integer


class EndRun(ArrayRecord, frozen=True):
    """A rank's run is over after `index` microbatches; left_out: samples that are in no step."""

    run: Count
    rank: Count
    index: Count
    left_out: Count


class LabelSum(ArrayRecord, frozen=True):
    """The label tokens of a step on all ranks."""

    run: Count
    step: Count
    tokens: Count


class RunStops(ArrayRecord, frozen=True):
    """The run cannot go on, and why; comes_again: its batch comes again if the loop goes on."""

    run: Count
    reason: str
    comes_again: bool


class BeatBack(ArrayRecord, frozen=True):
    """The answer to a TrainerBeat; waiting: what its next microbatch waits for, "" if not asked."""

    number: Count
    waiting: str


FromTrainer = JoinJob | BeginRun | WantBatches | LostPieces | CountLabels | TrainerBeat | LeaveJob
_OfRun = RunBegun | GiveBatch | EndRun | LabelSum | RunStops | BeatBack
ToTrainer = Ready | _OfRun | UnknownPeer | PeerRejected | Bye
FROM_TRAINER = get_args(FromTrainer)
KINDS = (*FROM_TRAINER, Ready, *get_args(_OfRun))
# Kinds that travel with others to the same peer; see Several of transport/wire.
SMALL_KINDS = (WantBatches, LostPieces, CountLabels, TrainerBeat, *get_args(_OfRun))
