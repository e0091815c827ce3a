"""Measures and decodes a source's samples, and packs them for the wire."""

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...balancer.protocol.job_spec import LABEL_TOKENS, from_json
from ...balancer.protocol.parts import Probed, SampleRef
from ...balancer.protocol.worker_session import SampleTask
from ..codec.fields import holds_fields
from ..codec.frames import encode_packed
from ..sources.costs import checked_key
from ..sources.failures import RETRIES, load_with_retries
from ..sources.interface import (
    Probe,
    SampleError,
    Source,
    checked_probe,
    file_of,
    source_name,
)
from ..sources.labels import labels_of
from ..sources.measuring import chosen_costs, refuse_threads
from ..stores.samples import expect_samples, reads_stores
from .decode_threads import DecodeThreads
from .results import Decoded

# Samples that a store is asked for before they are loaded; memory bounds them, too.
STORED_AHEAD = 32


class SourceHandler:
    """Probes and decodes by index; see workers/daemon/loop.py.

    It is given a source (in a local pool), or `build` makes one from a job's description. With
    `local` payloads stay on this machine, so any Python object may be one.
    """

    def __init__(
        self,
        source: Source | None,
        resources: tuple[str, ...],
        seed: int,
        local: bool,
        build: Callable[[dict[str, Any]], Source] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        threads: int = 1,
    ) -> None:
        """`threads` load samples; with 1 the caller's own does, when the sample is asked for."""
        self.source = source
        self.resources = resources
        self.seed = seed
        self.local = local
        self.build = build
        self.sleep = sleep
        self._threads = DecodeThreads(threads) if threads > 1 else None
        self._columns: tuple[Any, ...] | None = None
        self._reads_stores = False

    def open(self, job: str) -> tuple[int, str]:
        """Return the number of samples and the fingerprint; ValueError says what is missing."""
        if job and self.build is not None:
            told = from_json(job)
            self.resources = told.resources
            self.seed = told.plan.seed
            self.source = self.build(told.source)
        source = self._source()
        self._reads_stores = reads_stores(source)
        if self._threads is not None:
            self.expect(())
            refuse_threads(source, f"{self._threads.count} decode threads")
        columns = getattr(source, "cost_columns", None)
        self._columns = None if columns is None else columns(self.resources)
        uniform = getattr(source, "uniform_cost", None) or {}
        if self._columns is None and {*self.resources} <= {*uniform}:
            self._columns = tuple(
                np.broadcast_to(np.int64(uniform[name]), len(source)) for name in self.resources
            )
        return len(source), source.fingerprint()

    def close(self) -> None:
        """End the threads; nothing is asked for any more."""
        if self._threads is not None:
            self._threads.close()

    def expect(self, tasks: Collection[SampleTask]) -> None:
        """Begin to read from stores, and to load in threads, what is asked for next, in this order.

        Before a task that is to be alone is asked for, nothing else may be in work.
        """
        threads, source = self._threads, self.source
        if source is not None and self._reads_stores:
            probes = not self._decodes_first()
            soon = tuple(itertools.islice(tasks, STORED_AHEAD))
            wanted = ((task.ref.index, probes and task.kind == "probe") for task in soon)
            expect_samples(source, wanted)
        if threads is None or source is None:
            return
        soon = tuple(itertools.islice(tasks, threads.most_ahead))
        together = itertools.takewhile(lambda task: not task.alone, soon)
        samples = [(task.epoch, task.ref.index) for task in together if self._loads(task)]
        threads.begin(samples, partial(self._load_from, source, self.seed))
        if soon and soon[0].alone:
            threads.wait_until_idle()

    def key(self, ref: SampleRef) -> str:
        """Return a sample's key; TypeError where a source of the user's own gives no text."""
        return checked_key(self._source().key(ref.index), ref.index)

    @property
    def looks_up(self) -> bool:
        """Return whether costs are in a table, so that a lease is measured at once."""
        return self._columns is not None

    def look_up(self, refs: Sequence[SampleRef]) -> list[Probed]:
        """Return the costs of samples, which are in a table."""
        indexes = [ref.index for ref in refs]
        rows = zip(*(column[indexes].tolist() for column in self._columns or ()), strict=True)
        return [
            Probed(ref.ordinal, str(ref.index), row, 0) for ref, row in zip(refs, rows, strict=True)
        ]

    def file_of(self, ref: SampleRef) -> str:
        """Return the file that a sample is in, empty where the source does not say."""
        return file_of(self._source(), ref.index)

    def probe(self, ref: SampleRef, epoch: int) -> Probed | Decoded:
        """Measure a sample; where that takes decoding it, keep what was decoded."""
        source = self._source()
        measure = getattr(source, "measure", None) if self._decodes_first() else None
        if measure is not None:
            sample, load_s = self._load(ref, epoch)
            found = checked_probe(Probe(self.key(ref), measure(sample)))
            if LABEL_TOKENS not in found.cost and labels_of(sample) is None:
                found.cost[LABEL_TOKENS] = 0  # others have labels: what is counted was settled once
            return self._packed(found.key, chosen_costs(found, self.resources), sample, load_s)
        probed = self._retried(source.probe, ref.index)
        found = checked_probe(probed, self.key(ref))
        return Probed(
            ref.ordinal, found.key, chosen_costs(found, self.resources), found.nbytes or 0
        )

    def decode(self, ref: SampleRef, epoch: int) -> Decoded:
        """Decode a sample."""
        return self._packed(self.key(ref), (), *self._load(ref, epoch))

    def _source(self) -> Source:
        if self.source is None:
            raise ValueError("this worker has no source: start it with a job that names one")
        return self.source

    def _decodes_first(self) -> bool:
        return bool(getattr(self.source, "decode_first", False))

    def _loads(self, task: SampleTask) -> bool:
        return task.kind == "decode" or self._decodes_first()

    def _load(self, ref: SampleRef, epoch: int) -> tuple[Any, float]:
        """Return a sample, and how long a thread took for it, if one has loaded it."""
        threads = self._threads
        loaded = None if threads is None else threads.take((epoch, ref.index))
        if loaded is not None:
            return loaded
        source = self._source()
        return self._retried(source.load, ref.index, epoch, self.seed), 0.0

    def _load_from(self, source: Source, seed: int, epoch: int, index: int) -> Any:
        return self._retried(source.load, index, epoch, seed)

    def _retried(self, action: Callable[..., Any], *arguments: Any) -> Any:
        return load_with_retries(action, self.sleep, RETRIES, self._name, arguments)

    def _name(self) -> str:
        return source_name(self._source())

    def _packed(self, key: str, cost: tuple[int, ...], sample: Any, load_s: float = 0.0) -> Decoded:
        if not self.local and not holds_fields(sample):
            raise SampleError(
                key,
                f"the transform made a {type(sample).__name__}; only a dict of arrays, numbers and "
                "text can go to another host",
            )
        return Decoded(key, cost, *encode_packed(sample), load_s)
