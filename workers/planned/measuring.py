"""Measures samples for planning: costs by resource, without decoding where a source can do that.

Threads may load samples at the same time where the source says so, by an attribute `thread_safe =
True`: that `load`, `probe` and `key` may be called while another thread is in one of them. What
draws from the generators of the process may not: threads share these, and what a sample draws would
depend on the others.
"""

import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...balancer.run.tasks import FailedSample
from ..sources.costs import checked_key
from ..sources.failures import RETRIES, classify_failure, explain_failure, load_with_retries
from ..sources.interface import Probe, SampleError, Source, checked_probe, source_name
from ..sources.labels import LABEL_TOKENS, count_label_tokens, find_labels


class RaisedError:
    """An error of the user's code; a worker sends it with its traceback, as text, for its cause."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        text = "".join(traceback.format_exception(self.error))
        try:
            packed = pickle.dumps(self.error)
            pickle.loads(packed)  # here: in the trainer it would end the queue
        except Exception:
            packed = pickle.dumps(RuntimeError(explain_failure(self.error)))
        return _received, (packed, text)


def _received(packed: bytes, text: str) -> RaisedError:
    error = pickle.loads(packed)
    error.__cause__ = RuntimeError(f"in a worker process:\n{text}")
    return RaisedError(error)


def failed_sample(source: Source, index: int, error: Exception, skips: bool) -> FailedSample:
    """Return what is known of a sample that raised `error`; skips: it may be left out."""
    key = error.key if isinstance(error, SampleError) else checked_key(source.key(index), index)
    is_io, is_told = classify_failure(error) == "io", isinstance(error, SampleError)
    raised = None if is_told or (skips and not is_io) else RaisedError(error)
    return FailedSample(key, explain_failure(error), is_io, source.locate_file(index), raised)


def chosen_costs(probe: Probe, resources: Sequence[str]) -> tuple[int, ...]:
    """Return the costs of resources, in their order; SampleError where one is missing."""
    try:
        return tuple([probe.cost[name] for name in resources])
    except KeyError:
        missing = [name for name in resources if name not in probe.cost]
        raise SampleError(
            probe.key,
            f"has no cost named {', '.join(missing)}; its costs are {', '.join(probe.cost)}",
        ) from None


class Measurer:
    """Measures the samples of a source; `resources` are the costs that are asked for, in order.

    shift_labels: as in Balance. kept: where samples that were loaded for it stay, None: nowhere.
    """

    def __init__(
        self,
        source: Source,
        resources: Sequence[str],
        seed: int,
        sleep: Callable[[float], None] = time.sleep,
        shift_labels: bool = True,
    ) -> None:
        self.source = source
        self._shift_labels = shift_labels
        self.resources = tuple(resources)
        self._seed = seed
        self._sleep = sleep
        self._name = partial(source_name, source)
        self.kept_samples: Any = None  # KeptSamples of a worker elsewhere

    def key(self, index: int) -> str:
        """Return a sample's name; TypeError where a source of the user's own gives no text."""
        return checked_key(self.source.key(index), index)

    def load(self, index: int, epoch: int) -> Any:
        """Load a sample; reads that a disk fails are repeated."""
        stored = None if self.kept_samples is None else self.kept_samples.take(index, epoch)
        return stored[0] if stored else self._retried(self.source.load, index, epoch, self._seed)

    def probe(self, index: int) -> Probe:
        """Return what the source says that a sample costs; SampleError where that is no cost."""
        return checked_probe(self._retried(self.source.probe, index), self.key(index))

    def cost(self, index: int, epoch: int) -> tuple[int, ...]:
        """Find what a sample costs; SampleError where it cannot be measured."""
        if self.source.decode_first:
            sample = self.load(index, epoch)
            cost = self.measure_sample(index, sample)
            if self.kept_samples is not None:
                self.kept_samples.add(index, epoch, sample)
            return cost
        return chosen_costs(self.probe(index), self.resources)

    def measure_sample(self, index: int, sample: Any) -> tuple[int, ...]:
        """Return what a loaded sample costs, of a source that has to load it."""
        probe = checked_probe(Probe(self.key(index), self.source.measure(sample)))
        labels, counted = find_labels(sample), probe.cost.get(LABEL_TOKENS)
        if labels is None:  # others have labels: what is counted was settled once
            probe.cost.setdefault(LABEL_TOKENS, 0)
        elif not self._shift_labels and counted == count_label_tokens(labels):  # by the source
            probe.cost[LABEL_TOKENS] = count_label_tokens(labels, shift_labels=False)
        return chosen_costs(probe, self.resources)

    def _retried(self, action: Callable[..., Any], *arguments: Any) -> Any:
        return load_with_retries(action, self._sleep, RETRIES, self._name, arguments)


# More threads of one process wait for each other, and a number that large is a mistake.
MAX_THREADS = 64


def refuse_threads(source: Source, asked: str) -> None:
    """Raise ValueError for a source that does not say that it is thread-safe.

    `asked` is what was asked for, as the error says it.
    """
    if not source.thread_safe:
        raise ValueError(
            f"{asked}, but samples of {source_name(source)} may only be loaded by one thread: "
            f"{source.explain_single_thread()}, or use more workers"
        )
