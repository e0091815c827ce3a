"""The core of a balanced loop over a stream: its microbatches in order, and this rank's ledger."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from msgspec import structs

from ...balancer.protocol.parts import EpochPosition
from ..balanced.arrivals import Fetched, Kept
from ..balanced.microbatches import BalancedLoader
from ..balanced.step_infos import info_of
from ..plain.position import read_position
from ..resume.balanced_position import ResumePosition, checked_after
from ..resume.ledger import StreamLedger, check_same, check_same_data, read_ledger, write_ledger
from ..step.info import StepInfo
from ..step.labels import without_labels
from .loop import STREAM_START, StreamPosition, at_step
from .pack_loader import PackLoader, StreamPlace
from .reader import Pack

NOT_KNOWN = "of a stream the number of samples, and so of steps, is not known"


@dataclass(slots=True, kw_only=True)
class StreamLoader(BalancedLoader):
    """Microbatches of one rank's stream. packs: gives them, one at a time."""

    # Each rank has a ledger of its own.
    ledger_per_rank: ClassVar[bool] = True

    packs: PackLoader
    start_of_epoch: ResumePosition = STREAM_START
    position: ResumePosition = STREAM_START

    @property
    def why_no_steps(self) -> str:
        """Why the number of steps in an epoch is not known."""
        return NOT_KNOWN

    def count(self) -> int:
        """Raise TypeError: nobody knows."""
        raise TypeError(NOT_KNOWN)

    def begin(self) -> int:
        """Begin an iteration; see BalancedLoader.begin."""
        generation = BalancedLoader.begin(self)
        source: Any = self.open()
        if isinstance(self.position, StreamPosition) and self.position.stream is None:
            self.position = replace(self.position, stream=source.place)
        return generation

    def _tell_what_will_be_left_out(self) -> None:
        """Do nothing: nobody knows."""

    def state_dict(self, after: StepInfo | None = None) -> dict[str, Any]:
        """Return this rank's ledger of what has been handed out; see BalancedLoader.state_dict."""
        position: Any = self._resume or self.position
        epoch, data = self.epoch, self.data()
        if after is not None:
            position, epoch = checked_after(after.after, StreamPosition), after.epoch
        stream: StreamPlace | None = position.stream
        ledger = StreamLedger(
            seed=self.plan.seed,
            samples=None,
            data=data.identity,
            epoch=epoch,
            digest=self.plan.digest() + self.job.label_source,
            rank=self.ranks[0],
            ranks=self.plan.ranks,
            workers=self.packs.num_workers,
            step=position.place.step,
            microbatch=position.place.microbatch,
            left_out=0 if stream is None else stream.left_out,
            stream=self.packs.ledger(stream),
        )
        return write_ledger(ledger)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at this rank's ledger; ValueError if it is another's, or was of other workers.

        Running iterators end.
        """
        ledger = read_ledger(state, StreamLedger)
        own = {"rank": self.ranks[0], "ranks": self.plan.ranks, "workers": self.packs.num_workers}
        _check_readers(ledger, own)
        check_same(ledger, {"digest": self.plan.digest() + self.job.label_source})
        check_same_data(ledger, self.data())
        read_position(self.packs, ledger.stream)
        self._leave("load_state_dict() was called")
        place = StreamPlace(ledger=ledger.stream, left_out=ledger.left_out)
        here: EpochPosition = at_step(ledger.step, ledger.microbatch)
        self.epoch = self.next_epoch = ledger.epoch
        self._resume = StreamPosition(here, 0, (), ledger.left_out, ledger.left_out, place)
        self.pinned = False
        self.packs.tell_read_again(ledger.stream)

    def _passes_over(self, batch: Any) -> bool:
        return not batch.weights.step_samples

    def _deliver(self, kept: Kept, after: ResumePosition) -> Fetched:
        facts: Any = kept.arrival.batch
        pack: Pack = kept.arrival.unpack().batch
        told = tuple(pack.costs.get(name, 0) for name in self.job.resources)
        info = info_of(
            structs.replace(facts, costs=told),
            self.epoch, self.plan.ranks, self.job.resources, self._over_budget, after,
            shift_labels=self.job.shift_labels,
        )  # fmt: skip
        has_images = bool(info.keys) and pack.costs.get("tiles", 1) > 0
        nothing = dict.fromkeys(self.job.resources, 0)  # of a pack that weighs nothing
        costs = nothing | dict(pack.costs)
        padding = nothing | dict(pack.padding)
        info = replace(info, costs=costs, padding=padding, images=has_images)
        batch = pack.batch
        if not info.keys and not self.compares_batches:
            # A framework counts the labels of batches, and this one weighs nothing.
            batch = without_labels(batch)
        return Fetched(self.batches.finished(batch, info), info, after)


def _check_readers(ledger: StreamLedger, own: dict[str, int]) -> None:
    """Raise ValueError for a ledger of another rank, or of other numbers of ranks or workers."""
    other = [name for name, value in own.items() if getattr(ledger, name) != value]
    if other:
        pairs = "; ".join(
            f"{name} was {getattr(ledger, name)} and is {own[name]}" for name in other
        )
        raise ValueError(
            f"a stream's ledger is of one rank and its workers, each of which was at a place of "
            f"its own ({pairs}): save state_dict() on every rank, and resume each with its own, "
            "the same number of ranks and num_workers; or begin the epoch again"
        )
