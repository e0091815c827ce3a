"""The worker's part: reads a stream, packs it, and knows from where it can be read again.

A `PackedStream` stands for the user's data set in torch's loop over streams, and yields packs. Its
iterator has a state, as those of torchdata have: where the data set was before the oldest sample
that waits in the window, and which of the samples since then wait. So no sample is in the state:
a resumed run reads those few again. Data sets with a state of their own go on there, and others are
read again from the beginning: that is what StreamReader does for every stream.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from ...balancer.planning.problem.shapes import Sizing
from ...workers.batches.envelope import LoadedState, ReaderPosition, StartPosition, reader_number
from ...workers.batches.stream_reader import StreamReader
from ...workers.batches.tolerant_stream import Item
from ...workers.collate.labels import count_batch_label_tokens
from ...workers.sources.costs import checked_cost, checked_measure, checked_name, sample_nbytes
from ...workers.sources.data_identity import summarize_content
from ...workers.sources.failures import ErrorAction, SkippedSample
from ...workers.sources.fingerprint import digest
from ...workers.sources.interface import SampleError
from ...workers.sources.labels import with_label_tokens
from ..plain.torch_names import TorchExceptionWrapper
from .packing import Limits, PackWindow

Cost = Callable[[Any], Mapping[str, int]]
# The state of the data set is kept for every so many samples: so many more are read again.
MARK_EVERY = 64
TILE_AXES = 4
_NOTHING = object()
_wrapped: Any = TorchExceptionWrapper


@dataclass(frozen=True, slots=True)
class PackSettings:
    """How a stream is packed.

    sizing: what samples and packs are padded to. resources: with a budget, as in limits and sizing.
    label_tokens: the cost that counts them; None where they are counted in the batches. oversize,
    shift_labels: as in Balance. takes_empty: collate makes a batch of no samples. most_bytes: of
    the samples that wait, of each worker.
    """

    limits: Limits
    sizing: Sizing
    resources: tuple[str, ...]
    cost: Cost | None
    collate: Callable[[list[Any]], Any]
    takes_empty: bool
    oversize: str = "alone"
    label_tokens: str | None = None
    shift_labels: bool = True
    on_error: ErrorAction = "raise"
    most_bytes: int = 1 << 62


class Pack(NamedTuple):
    """A microbatch that a worker has made; a named tuple, since torch pins the members of those.

    costs: in all resources; padding: what of them is. holes: samples that were left out since the
    pack before. mark: of the first pack, what tells the first sample from others. is_end: there are
    no more; the batch is then of one sample that was in a pack before, or None where a batch of
    none can be made. error: what collate has raised: the same pack comes next.
    """

    batch: Any
    keys: Sequence[str]
    costs: Mapping[str, int]
    padding: Mapping[str, int]
    label_tokens: int
    holes: Sequence[SkippedSample]
    mark: str = ""
    is_end: bool = False
    error: Any = None


class Held(NamedTuple):
    """A sample that waits, and its number among those that its reader has read."""

    number: int
    key: str
    costs: dict[str, int]
    sample: Any


def own_costs(sample: Any) -> dict[str, int]:
    """Return what a sample costs by what it holds: its tokens, and its tiles if it has some.

    >>> own_costs({"input_ids": [5, 6, 7], "pixel_values": np.zeros((2, 3, 4, 4))})
    {'tokens': 3, 'tiles': 2}
    """
    if not isinstance(sample, Mapping) or "input_ids" not in sample:
        raise ValueError(
            f"what a sample of this stream costs is not known: it is a {type(sample).__name__} "
            "without input_ids; give DataLoader(cost=...), a function from a sample to its costs, "
            'such as lambda sample: {"tokens": len(sample["tokens"])}'
        )
    tiles: Any = sample.get("pixel_values")
    tile_costs = {"tiles": len(tiles)} if getattr(tiles, "ndim", 0) == TILE_AXES else {}
    return {"tokens": len(sample["input_ids"]), **tile_costs}


class PackedStream(IterableDataset[Any]):
    """Packs of a data set's samples; each worker packs what it reads."""

    def __init__(self, dataset: Any, settings: PackSettings) -> None:
        self.dataset, self.settings, self.loaded = dataset, settings, LoadedState()

    def __repr__(self) -> str:
        return repr(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Choose the data set's epoch."""
        self.dataset.set_epoch(epoch)

    def __iter__(self) -> "PackIterator":
        return PackIterator(self)


class PackIterator:
    """One iteration over a PackedStream, in one reader: a worker, or the trainer."""

    def __init__(self, stream: PackedStream) -> None:
        self._stream, self._settings = stream, stream.settings
        self._window = PackWindow(stream.settings.limits, most_bytes=stream.settings.most_bytes)
        # Where to begin, how many items to read again there, and which of these wait (as bits);
        # `_from` stays what it is, the others are None once that is done.
        self._from: dict[str, Any] = _as_dict(ReaderPosition())
        self._again: tuple[int, int] | None = (0, 0)
        self._reader: Any = None
        self._items: Iterator[Any] = iter(())
        # Items that were read since `_from`, and the data set's positions after some of them.
        self._read = 0
        self._marks: deque[tuple[int, bytes]] = deque()
        self._holes: list[SkippedSample] = []
        self._mark = ""
        # The samples of the pack that comes next, until it has been collated.
        self._due: list[Held] | None = None
        self._last: Held | None = None
        self._is_at_end = self._has_told_end = False

    def __iter__(self) -> "PackIterator":
        return self

    def __next__(self) -> Pack:
        """Return the next pack; after the last one that there are no more."""
        if self._due is None:
            self._due = self._next_samples()
        try:
            pack = self._make_pack(self._due)
        except Exception as raised:
            in_worker = get_worker_info() is not None
            error = _wrapped(where=f"in reader {reader_number()}") if in_worker else raised
            return Pack(None, (), {}, {}, 0, (), error=error)
        self._due, self._holes, self._mark = None, [], ""
        return pack

    def _next_samples(self) -> list[Held]:
        if self._again is not None:
            self._begin(*self._again)
        while not self._is_at_end and self._window.wants():
            self._read_one()
        if self._window.numbers:
            return self._window.take()
        if self._has_told_end:
            raise StopIteration
        self._has_told_end = True
        return [] if self._last is None else [self._last]

    def _make_pack(self, held: list[Held]) -> Pack:
        settings, samples = self._settings, [waiting.sample for waiting in held]
        if self._has_told_end:  # the batch of such a pack only fills a step up
            has_batch = bool(samples) and not settings.takes_empty
            batch = settings.collate(samples) if has_batch else None
            return Pack(batch, (), {}, {}, 0, tuple(self._holes), is_end=True)
        batch, label = settings.collate(samples), settings.label_tokens
        costs = [waiting.costs for waiting in held]
        sums = {name: sum(row.get(name, 0) for row in costs) for row in costs for name in row}
        limited = [tuple(row[name] for name in settings.resources) for row in costs]
        loads, padding = settings.sizing.total(np.array(limited, np.int64))
        return Pack(
            batch,
            tuple(waiting.key for waiting in held),
            sums | dict(zip(settings.resources, loads, strict=True)),
            dict(zip(settings.resources, padding, strict=True)),
            sums[label]
            if label is not None
            else count_batch_label_tokens(batch, samples, settings.shift_labels),
            tuple(self._holes),
            self._mark,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return from where to read, how much of it again, and which of those samples wait."""
        if self._again is not None:
            read, waits = self._again
            return {"from": self._from, "read": read, "waits": f"{waits:x}"}
        # A pack that could not be collated is due: its samples wait, too.
        due = () if self._has_told_end else (waiting.number for waiting in self._due or ())
        numbers = sorted((*self._window.numbers, *due))
        # One sample is read again in any case: a rank that is at its end may need it.
        oldest = min([*numbers[:1], self._read - 1])
        while len(self._marks) > 1 and self._marks[1][0] <= oldest:
            self._marks.popleft()
        begins, packed = self._marks[0]
        waits = sum(1 << number - begins for number in numbers)
        position = _as_dict(ReaderPosition.unpack(packed).check_known())
        return {"from": position, "read": self._read - begins, "waits": f"{waits:x}"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called; before the first pack."""
        self._from = dict(state["from"])
        self._again = int(state["read"]), int(state["waits"], 16)

    def _begin(self, read: int, waits: int) -> None:
        """Open the stream, and read again what was read since `_from`."""
        at, settings = ReaderPosition(**self._from), self._settings
        start = StartPosition((*[ReaderPosition()] * reader_number(), at))
        self._reader = StreamReader(
            self._stream.dataset, settings.collate, None, False, settings.on_error, start, False,
            self._stream.loaded,
        )  # fmt: skip
        self._again, self._items = None, iter(self._reader)
        self._marks.append((0, at.pack()))
        while self._read < read and not self._is_at_end:
            self._read_one(is_known=True, waits=bool(waits >> self._read & 1))
        if self._read < read:
            raise ValueError(
                f"the ledger says that {read} samples of this stream follow its position, and it "
                f"has only {self._read}: resume with the same stream, or begin the epoch again"
            )
        self._window.begin_reading()

    def _read_one(self, is_known: bool = False, waits: bool = True) -> None:
        """Read an item; is_known: one that was read before, and `waits` in the window or not."""
        item = next(self._items, _NOTHING)
        if item is _NOTHING:
            self._is_at_end = True
            return
        number, self._read = self._read, self._read + 1
        self._reader.count(1)
        sample, holes, is_found = item, list[SkippedSample](), True
        if isinstance(item, SampleError):
            raise item
        if isinstance(item, Item):
            sample, holes, is_found = item.sample, [*item.holes], item.has_sample
        if is_found and (hole := self._take(number, sample, waits)) is not None:
            holes.append(hole)
        if not is_known:
            self._holes += holes
            if number == self._from["read"] == 0 and is_found:
                self._mark = digest([summarize_content(sample)])
        # Before the first sample a data set may still state the end of another iteration. That
        # sample is in the first pack, so that no run goes on before it.
        if self._read == 1 or self._read - self._marks[-1][0] >= MARK_EVERY:
            self._marks.append((self._read, self._reader.position()))

    def _take(self, number: int, sample: Any, waits: bool) -> SkippedSample | None:
        """Hold a sample, if it is to wait; return why it is left out, None if it is not."""
        settings, limits = self._settings, self._settings.limits
        name = sample.get("__key__") if isinstance(sample, Mapping) else None
        place = f"{reader_number()}:{self._from['read'] + number}"
        key = name if isinstance(name, str) else place
        try:
            costs = self._costs(sample, key)
        except SampleError as error:
            if settings.on_error == "raise":
                raise
            return SkippedSample(key, error.reason, "data", error.source)
        row = np.array([[costs[name] for name in settings.resources]], np.int64)
        limited = tuple(settings.sizing.rounded(row)[0].tolist())
        # "alone": the window gives it a pack of its own.
        if settings.oversize != "alone" and not limits.allow(limited):
            named = zip(settings.resources, limited, limits.budgets, strict=True)
            over = ", ".join(f"{n:,} {name} of {most:,}" for name, n, most in named if n > most)
            why = f"over budget ({over}), and oversize is {settings.oversize!r}"
            if settings.oversize == "refuse":
                return SkippedSample(key, why, "data")
            raise ValueError(f"sample {key!r} is {why}: give larger budgets, or another oversize")
        self._last = Held(number, key, costs, sample)
        if waits:
            self._window.add(number, limited, self._last, sample_nbytes(sample))
        return None

    def _costs(self, sample: Any, key: str) -> dict[str, int]:
        """Return what a sample costs; ValueError where a resource with a budget is not known."""
        settings = self._settings
        measured = own_costs(sample) if settings.cost is None else settings.cost(sample)
        costs = with_label_tokens(checked_measure(measured), sample, settings.shift_labels)
        costs = {checked_name(n, key): checked_cost(n, cost, key) for n, cost in costs.items()}
        needed = (*settings.resources, *filter(None, [settings.label_tokens]))
        if missing := [name for name in needed if name not in costs]:
            raise ValueError(
                f"sample {key!r} has no cost named {', '.join(missing)}; its costs are "
                f"{', '.join(costs)}: give DataLoader(cost=...), a function from a sample to all "
                "costs that have a budget"
            )
        return costs


def _as_dict(position: ReaderPosition) -> dict[str, Any]:
    return {field.name: getattr(position, field.name) for field in fields(position)}
