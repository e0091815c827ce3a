"""Loads and collates the microbatches that a worker of a planned loop is given.

torch's fetcher gives the tasks to a `PlannedReader`, which stands for the data set, and its results
to `collate`. A task is a list of whole numbers; a batch about which there is nothing more to say is
returned as it is.
"""

import time
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from torch.utils.data import Dataset

from ...balancer.run.tasks import LOOK, MEASURE, FailedSample, Load, LoadedBatch, Measure, Measured
from ..batches.map_reader import SEVERAL, expect_tasks
from ..sources.costs import sample_nbytes
from ..sources.data_identity import summarize_content
from ..sources.fingerprint import digest
from ..sources.interface import Source
from ..sources.labels import count_label_tokens, find_labels
from ..sources.randomness import RandomnessWatch, global_randomness
from .measuring import Measurer, failed_sample, refuse_threads

Collate = Callable[[list[Any]], Any]
_Failures = tuple[tuple[int, FailedSample], ...]
# Counts the label tokens of a batch, or of its samples where it has none; shift_labels, last.
CountLabels = Callable[[Any, Sequence[Any], bool], int]
# The first batch waits for a look, which ends after the first sample that takes it past this.
LOOK_S = 0.3
# Names the randomness of a collate function: no sample has this name.
_COLLATE = "\x00collate"


class PlannedReader(Dataset[Any]):
    """A source, and the collate function that goes with it.

    dataset: the user's, which get_worker_info() shows. skips: whether samples that cannot be used
    are left out. takes_empty: whether collate_fn makes a batch of no samples. draws: whether
    collate_fn may draw random numbers. count_labels: counts a batch's label tokens.
    progress: where the worker says which sample it works on, by its number; None: nowhere.
    upcoming: returns the tasks that follow, of which stores are told; torch's workers have a queue.
    """

    def __init__(
        self,
        dataset: Any,
        source: Source,
        resources: Sequence[str],
        seed: int,
        collate_fn: Collate,
        skips: bool = False,
        takes_empty: bool = True,
        draws: bool = False,
        shift_labels: bool = True,
        count_labels: CountLabels | None = None,
        threads: int = 1,
    ) -> None:
        self.dataset = dataset
        self._measurer = Measurer(source, resources, seed, shift_labels=shift_labels)
        self._shift_labels = shift_labels
        self._seed = seed
        self._watch = RandomnessWatch()
        self._collate_fn = collate_fn
        self._skips = skips
        self._takes_empty = takes_empty
        self._draws = draws
        self._count_labels = count_labels
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._reads_stores = source.reads_stores
        self.progress: MutableSequence[int] | None = None
        self.number = 0
        self.upcoming: Callable[[], Iterable[Sequence[int]]] = tuple

    def begin(self, number: int) -> None:
        """Begin as worker `number`.

        In place of one that has died with several samples in work, samples are loaded one at a
        time: if this one dies too, it is known of which.
        """
        self.number = number
        if self.progress is not None and self.progress[number] == SEVERAL:
            self._threads = 1
            self.progress[number] = 0

    def go_over(self) -> None:
        """Do nothing: other readers bring their data set to where an iteration has ended."""

    def restore(self) -> None:
        """Refuse threads where samples are loaded one at a time; there is no state to restore."""
        if self._threads > 1:
            refuse_threads(self._measurer.source, f"{self._threads} decode threads")

    def keep_samples(self, most_bytes: int) -> None:
        """Keep samples that had to be loaded to be measured, so that none is loaded twice."""
        from .kept_samples import KeptSamples  # here: a local loop keeps none

        self._measurer.kept_samples = KeptSamples(most_bytes)

    def key(self, index: int) -> str:
        """Return a sample's name."""
        return self._measurer.key(index)

    def find_kept(self, indexes: Sequence[int]) -> tuple[int, ...]:
        """Return the places of samples of the last task's epoch that are kept."""
        store = self._measurer.kept_samples
        return tuple(p for p, index in enumerate(indexes) if store is not None and store.has(index))

    def do(self, task: list[int], collates: bool = True) -> Any:
        """Do a task, and return what `collate` is to hand over.

        Unless `collates`, LoadedBatch.batch is the samples that could be used.
        """
        kind, epoch, flags, *indexes = task
        if self._measurer.kept_samples is not None:
            self._measurer.kept_samples.begin(epoch)
        if self._reads_stores:
            expect_tasks(self._measurer.source, task, self._list_samples, self.upcoming())
        if kind == MEASURE:
            return self._measure(Measure(epoch, indexes, bool(flags)))
        if kind == LOOK:
            return self._hash_samples(indexes, epoch)
        load = Load(epoch, indexes, *(bool(flags >> bit & 1) for bit in range(5)))
        return self._make_batch(load, collates)

    __getitems__ = do  # torch's fetcher asks for this

    def _list_samples(self, task: Sequence[int]) -> Iterator[tuple[int, bool]]:
        """Yield the samples of a task, and whether they are only probed."""
        kind, _, _, *indexes = task
        is_probed = kind == MEASURE and not self._measurer.source.decode_first
        yield from ((index, is_probed) for index in indexes)

    def collate(self, done: Any) -> Any:
        """Return what was made: torch's fetcher asks for this."""
        return done

    def _make_batch(self, task: Load, collates: bool) -> Any:
        """Return a batch, or a LoadedBatch where more than the batch is to be told."""
        collate = self._collate_batch if collates else lambda _, samples: samples
        if task.spare:
            return self._spare(task, collate)
        good = self._load_samples(task)
        failed = tuple((p, sample) for p, sample in enumerate(good) if type(sample) is FailedSample)
        if failed and (not self._skips or any(sample.is_io for _, sample in failed)):
            return LoadedBatch(None, failed=failed)
        if failed:
            good = [sample for sample in good if type(sample) is not FailedSample]
        if not good and not (self._takes_empty and collates):
            return LoadedBatch(None, failed=failed)
        batch = collate(task, good)
        # Most batches are told of nothing more, and need no object of their own.
        count = self._count_labels if collates else None
        if not (failed or any(task[2:]) or count):
            return batch
        return self._describe(task, batch, good, failed, count)

    def _describe(
        self, task: Load, batch: Any, good: list[Any], failed: _Failures, count: CountLabels | None
    ) -> LoadedBatch:
        """Return a batch of the samples that could be used, with what was asked about them."""
        bad = {place for place, _ in failed}
        indexes = [index for place, index in enumerate(task.indexes) if place not in bad]
        return LoadedBatch(
            batch,
            tuple(map(self._measurer.key, indexes)) if task.names else (),
            failed,
            tuple(map(self._measurer.measure_sample, indexes, good)) if task.costs else (),
            count_sample_labels(good) if task.labels else None,
            None if count is None else count(batch, good, self._shift_labels),
            sum(map(sample_nbytes, good)) if task.size else None,
        )

    def _spare(self, task: Load, collate: Callable[[Load, list[Any]], Any]) -> LoadedBatch:
        """Make a batch of the first sample that can be loaded."""
        for index in task.indexes:
            sample = self._load_one(index, task.epoch)
            if type(sample) is not FailedSample:
                return LoadedBatch(collate(task, [sample]))
        return LoadedBatch(None)

    def _collate_batch(self, task: Load, samples: list[Any]) -> Any:
        if not self._draws:
            return self._collate_fn(samples)
        first = task.indexes[0] if task.indexes else -1
        return collate_seeded(self._collate_fn, samples, self._seed, task.epoch, first)

    def _load_samples(self, task: Load) -> list[Any]:
        """Load samples; FailedSample stands for one that cannot be used."""
        if self._threads > 1:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads)
            return self._load_by_threads(self._pool, task)
        # The very first sample alone: where it draws, no whole microbatch is loaded twice.
        first = 0 if self._watch.has_loaded else 1
        samples: list[Any] = []
        for indexes in filter(None, (task.indexes[:first], task.indexes[first:])):
            samples += self._watch.run(partial(self._load_in_turn, indexes, task.epoch))
            if samples and type(samples[-1]) is FailedSample and not self._skips:
                break
        return samples

    def _load_in_turn(self, indexes: Sequence[int], epoch: int) -> list[Any]:
        samples = []
        for index in indexes:
            samples.append(self._load_one(index, epoch))
            if type(samples[-1]) is FailedSample and not self._skips:
                break
        return samples

    def _load_by_threads(self, pool: ThreadPoolExecutor, task: Load) -> list[Any]:
        if self.progress is not None:
            self.progress[self.number] = SEVERAL
        load = partial(self._run_or_fail, self._measurer.load, epoch=task.epoch)
        try:
            return list(pool.map(load, task.indexes))
        finally:
            if self.progress is not None:
                self.progress[self.number] = 0

    def _load_one(self, index: int, epoch: int) -> Any:
        return self._run_noting(self._measurer.load, index, epoch)

    def _run_noting(self, action: Callable[[int, int], Any], index: int, epoch: int) -> Any:
        """Return an action's result; if the worker dies meanwhile, `progress` names the sample."""
        progress = self.progress
        if progress is not None:
            progress[self.number] = index + 1
        try:
            return self._run_or_fail(action, index, epoch)
        finally:
            if progress is not None:
                progress[self.number] = 0

    def _run_or_fail(self, action: Callable[[int, int], Any], index: int, epoch: int) -> Any:
        try:
            return action(index, epoch)
        except Exception as error:  # on_error says what comes of it
            return failed_sample(self._measurer.source, index, error, self._skips)

    def _measure(self, task: Measure) -> Measured:
        since = time.perf_counter()
        costs = tuple(self._cost(index, task.epoch) for index in task.indexes)
        seconds = time.perf_counter() - since
        differs = False
        if task.again and self._measurer.source.decode_first:
            differs = costs != tuple(self._cost(index, task.epoch + 1) for index in task.indexes)
        return Measured(costs, seconds, differs)

    def _hash_samples(self, indexes: Sequence[int], epoch: int) -> tuple[tuple[str, str], ...]:
        """Return hashes of samples: of what any host finds alike, and of all; "" for no hash.

        They are loaded twice: what differs here may differ on other ranks.
        """
        since, first, again = time.perf_counter(), list[Any](), list[Any]()
        for index in indexes:
            first.append(self._run_noting(self._hash_sample, index, epoch))
            again.append(self._run_noting(self._hash_sample, index, epoch))
            if time.perf_counter() - since > LOOK_S:
                break
        # Where one sample differs others might, though twice they did not.
        pairs = list(zip(first, again, strict=True))
        same = [all(hashes[part] == repeat[part] for hashes, repeat in pairs) for part in (0, 1)]
        return tuple(
            ("", "") if type(hashes) is FailedSample else (hashes[0] * same[0], hashes[1] * same[1])
            for hashes in first
        )

    def _hash_sample(self, index: int, epoch: int) -> tuple[str, str]:
        measurer = self._measurer
        sample = measurer.load(index, epoch)
        by_loading = measurer.source.decode_first
        cost = measurer.measure_sample(index, sample) if by_loading else measurer.cost(index, epoch)
        portable, exact = (summarize_content(sample, is_exact=flag) for flag in (False, True))
        return digest([cost, portable]), digest([cost, exact])

    def _cost(self, index: int, epoch: int) -> tuple[int, ...] | FailedSample:
        cost: tuple[int, ...] | FailedSample = self._run_noting(self._measurer.cost, index, epoch)
        return cost

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def __getstate__(self) -> dict[str, Any]:
        """Leave threads behind: a process starts its own."""
        return {**self.__dict__, "_pool": None}


def collate_seeded(collate: Collate, samples: list[Any], seed: int, epoch: int, first: int) -> Any:
    """Return the batch of a collate function that may draw; first: as in GiveBatch."""
    with global_randomness(seed, epoch, f"{_COLLATE} {'' if first < 0 else first}"):
        return collate(samples)


def count_sample_labels(samples: Sequence[Any]) -> tuple[int, int] | None:
    """Return the label tokens of samples, counted at their token and at the token before.

    None where no sample has labels; see LabelCheck.

    >>> count_sample_labels([{"labels": [5, 6, -100]}, {"text": "a"}])
    (1, 2)
    """
    labelled = [labels for labels in map(find_labels, samples) if labels is not None]
    if not labelled:
        return None
    at_token = sum(count_label_tokens(labels) for labels in labelled)
    return at_token, sum(count_label_tokens(labels, False) for labels in labelled)
