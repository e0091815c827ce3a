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

from ...workers.batches.envelope import LoadedState, ReaderPosition, StartPosition, reader_number
from ...workers.batches.stream_reader import StreamReader
from ...workers.batches.tolerant_stream import Item
from ...workers.sources.costs import checked_cost, checked_measure, checked_name, sample_nbytes
from ...workers.sources.data_identity import content_of
from ...workers.sources.failures import OnError, SkippedSample
from ...workers.sources.fingerprint import digest
from ...workers.sources.interface import SampleError
from ...workers.sources.labels import with_label_tokens
from ..step.labels import count_label_tokens_of
from .packing import Limits, Window, load_of

Collate = Callable[[list[Any]], Any]
Cost = Callable[[Any], Mapping[str, int]]
# The state of the data set is kept for every so many samples: so many more are read again.
MARK_EVERY = 64
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class PackSettings:
    """How a stream is packed.

    resources: with a budget, as in limits. label_tokens: the cost that counts them; None where they
    are counted in the batches. oversize, as in Balance. takes_empty: collate makes a batch of no
    samples. most_bytes: of the samples that wait, of each worker.
    """

    limits: Limits
    resources: tuple[str, ...]
    cost: Cost | None
    collate: Collate
    takes_empty: bool
    oversize: str = "alone"
    label_tokens: str | None = None
    on_error: OnError = "raise"
    most_bytes: int = 1 << 62


class Pack(NamedTuple):
    """A microbatch that a worker has made; a named tuple, since torch pins the members of those.

    costs: in all resources. holes: samples that were left out since the pack before. mark: of the
    first pack, what tells the first sample from others. is_end: there are no more; the batch is
    then of one sample that was in a pack before, or None where a batch of none can be made.
    """

    batch: Any
    keys: Sequence[str]
    costs: Mapping[str, int]
    label_tokens: int
    holes: Sequence[SkippedSample]
    mark: str = ""
    is_end: bool = False


class Chosen(NamedTuple):
    """The samples of a pack, with name, costs and sample of each; as in Pack."""

    samples: list[tuple[str, dict[str, int], Any]]
    holes: tuple[SkippedSample, ...]
    mark: str = ""
    is_end: bool = False


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
    costs = {"tokens": len(sample["input_ids"])}
    if len(np.shape(sample.get("pixel_values"))) == len(("tiles", "channels", "height", "width")):
        costs["tiles"] = len(sample["pixel_values"])
    return costs


class PackedStream(IterableDataset[Any]):
    """Packs of a data set's samples; each worker packs what it reads."""

    def __init__(self, dataset: Any, settings: PackSettings) -> None:
        self.dataset = dataset
        self.settings = settings
        self.loaded = LoadedState()

    def __repr__(self) -> str:
        return repr(self.dataset)

    def __iter__(self) -> "PackIterator":
        return PackIterator(self)

    def collate(self, chosen: Chosen) -> Pack:
        """Return the pack of some samples: torch's fetcher asks for this."""
        settings, samples = self.settings, [sample for *_, sample in chosen.samples]
        if chosen.is_end and (settings.takes_empty or not samples):
            return Pack(None, (), {}, 0, chosen.holes, is_end=True)
        batch = settings.collate(samples)
        costs = [costs for _, costs, _ in chosen.samples]
        if settings.label_tokens is None:
            label_tokens = count_label_tokens_of(batch, samples)
        else:
            label_tokens = sum(each[settings.label_tokens] for each in costs)
        sums = {name: sum(each.get(name, 0) for each in costs) for each in costs for name in each}
        limits, names = settings.limits, settings.resources
        loads = load_of([tuple(each[name] for name in names) for each in costs], limits.padded)
        return Pack(
            batch,
            tuple(key for key, *_ in chosen.samples),
            sums | dict(zip(names, loads, strict=True)),
            label_tokens,
            chosen.holes,
            chosen.mark,
            chosen.is_end,
        )

    def show_dataset(self) -> None:
        """Let get_worker_info() have the user's data set, as in any other loop."""
        info: Any = get_worker_info()
        if info is not None:
            object.__setattr__(info, "dataset", self.dataset)


class PackIterator:
    """One iteration over a PackedStream, in one reader: a worker, or the trainer."""

    def __init__(self, stream: PackedStream) -> None:
        self._stream, self._settings = stream, stream.settings
        self._window = Window(stream.settings.limits, most_bytes=stream.settings.most_bytes)
        self._from: dict[str, Any] = _as_dict(ReaderPosition())
        # To be read again, and which of these wait; None once that is done.
        self._again: tuple[int, int] | None = (0, 0)
        self._reader: StreamReader | None = None
        self._items: Iterator[Any] = iter(())
        # Items that were read since `_from`, and the data set's positions after some of them.
        self._read = 0
        self._marks: deque[tuple[int, bytes]] = deque()
        self._holes: list[SkippedSample] = []
        self._last: tuple[str, dict[str, int], Any] | None = None
        self._first_mark = ""
        self._is_at_end = self._has_told_end = False

    def __iter__(self) -> "PackIterator":
        return self

    def __next__(self) -> Chosen:
        """Return the next pack; after the last one that there are no more."""
        if self._again is not None:
            self._begin(*self._again)
        while not self._is_at_end and self._window.wants():
            self._read_one()
        if self._window.numbers:
            return self._chosen(self._window.take())
        if self._has_told_end:
            raise StopIteration
        self._has_told_end = True
        return self._chosen([] if self._last is None else [self._last], is_end=True)

    def _chosen(self, samples: list[Any], is_end: bool = False) -> Chosen:
        holes, self._holes = tuple(self._holes), []
        mark, self._first_mark = self._first_mark, ""
        return Chosen(samples, holes, mark, is_end)

    def state_dict(self) -> dict[str, Any]:
        """Return from where to read, how much of it again, and which of those samples wait."""
        if self._again is not None:
            read, waits = self._again
            return {"from": self._from, "read": read, "waits": f"{waits:x}"}
        numbers = self._window.numbers
        # One sample is read again in any case: a rank that is at its end may need it.
        oldest = min([*numbers[:1], self._read - 1])
        while len(self._marks) > 1 and self._marks[1][0] <= oldest:
            self._marks.popleft()
        begins, packed = self._marks[0]
        waits = sum(1 << number - begins for number in numbers)
        position = _as_dict(ReaderPosition.unpack(packed))
        return {"from": position, "read": self._read - begins, "waits": f"{waits:x}"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called; before the first pack."""
        self._from = dict(state["from"])
        self._again = int(state["read"]), int(state["waits"], 16)

    def _begin(self, read: int, waits: int) -> None:
        """Open the stream, and read again what was read since `_from`."""
        number, at = reader_number(), ReaderPosition(**self._from)
        start = StartPosition((*[ReaderPosition()] * number, at))
        settings, stream = self._settings, self._stream
        self._reader = StreamReader(
            stream.dataset, settings.collate, None, False, settings.on_error, start, False,
            stream.loaded,
        )  # fmt: skip
        self._again = None
        self._items = iter(self._reader)
        self._marks.append((0, ReaderPosition(**self._from).pack()))
        while self._read < read and not self._is_at_end:
            self._read_one(is_known=True, waits=bool(waits >> self._read & 1))
        if self._read < read:
            raise ValueError(
                f"the ledger says that {read} samples of this stream follow its position, and it "
                f"has only {self._read}: resume with the same stream, or begin the epoch again"
            )
        self._window.restored()

    def _read_one(self, is_known: bool = False, waits: bool = True) -> None:
        """Read an item; is_known: one that was read before, and `waits` in the window or not."""
        item, reader = next(self._items, _NOTHING), self._reader
        if item is _NOTHING or reader is None:
            self._is_at_end = True
            return
        number, self._read = self._read, self._read + 1
        reader.count(1)
        sample, holes = (item.sample, item.holes) if isinstance(item, Item) else (item, ())
        if holes and not is_known:
            self._holes += holes
        if not isinstance(item, Item) or item.found:
            self._take(number, sample, is_known, waits)
        if self._read - self._marks[-1][0] >= MARK_EVERY:
            self._marks.append((self._read, reader.position().pack()))

    def _take(self, number: int, sample: Any, is_known: bool, waits: bool) -> None:
        settings = self._settings
        name = sample.get("__key__") if isinstance(sample, Mapping) else None
        key = name if isinstance(name, str) else f"{reader_number()}:{number + self._before}"
        try:
            costs = self._costs(sample, key)
        except SampleError as error:
            if settings.on_error == "raise":
                raise
            self._leave_out(SkippedSample(key, error.reason, "data", error.source), is_known)
            return
        limited = tuple(costs[name] for name in settings.resources)
        if not settings.limits.allow(limited) and settings.oversize != "alone":
            over = ", ".join(
                f"{costs[name]:,} {name} of {most:,}"
                for name, most in zip(settings.resources, settings.limits.budgets, strict=True)
                if costs[name] > most
            )
            if settings.oversize == "error":
                raise ValueError(
                    f"sample {key!r} is over budget ({over}), and oversize is 'error': give larger "
                    "budgets, or oversize 'alone' or 'refuse'"
                )
            why = f"over budget ({over}), and oversize is 'refuse'"
            self._leave_out(SkippedSample(key, why, "data"), is_known)
            return
        self._last = key, costs, sample
        if not number and not is_known:
            self._first_mark = digest([content_of(sample)])
        if waits:
            self._window.add(number, limited, self._last, sample_nbytes(sample))

    @property
    def _before(self) -> int:
        """The items that this iteration has read before the position that it began at."""
        return int(self._from["read"])

    def _leave_out(self, hole: SkippedSample, is_known: bool) -> None:
        if not is_known:
            self._holes.append(hole)

    def _costs(self, sample: Any, key: str) -> dict[str, int]:
        """Return what a sample costs; ValueError where a resource with a budget is not known."""
        settings = self._settings
        found = own_costs(sample) if settings.cost is None else settings.cost(sample)
        costs = with_label_tokens(checked_measure(found), sample)
        costs = {checked_name(n, key): checked_cost(n, each, key) for n, each in costs.items()}
        needed = (*settings.resources, *filter(None, [settings.label_tokens]))
        if missing := [name for name in needed if name not in costs]:
            raise ValueError(
                f"sample {key!r} has no cost named {', '.join(missing)}; its costs are "
                f"{', '.join(costs)}: give DataLoader(cost=...), a function from a sample to all "
                "costs that have a budget"
            )
        return costs


def _as_dict(position: ReaderPosition) -> dict[str, Any]:
    return {each.name: getattr(position, each.name) for each in fields(position)}
