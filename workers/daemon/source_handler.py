"""Measures and decodes a source's samples, and packs them for the wire."""

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ...balancer.protocol.job_spec import from_json
from ...balancer.protocol.parts import Probed, SampleRef
from ...balancer.protocol.worker_session import SampleTask
from ..codec.fields import holds_fields
from ..codec.frames import encode_packed
from ..planned.measuring import Measurer, chosen_costs, refuse_threads
from ..sources.interface import (
    SampleError,
    Source,
    file_of,
)
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
        shift_labels: bool = True,
    ) -> None:
        """`threads` load samples; with 1 the caller's own does, when the sample is asked for."""
        self.local = local
        self.build = build
        self._sleep = sleep
        self._of_job = (
            None if source is None else Measurer(source, resources, seed, sleep, shift_labels)
        )
        self._threads = DecodeThreads(threads) if threads > 1 else None
        self._columns: tuple[Any, ...] | None = None
        self._reads_stores = False

    def open(self, job: str) -> tuple[int, str]:
        """Return the number of samples and the fingerprint; ValueError says what is missing."""
        if job and self.build is not None:
            told = from_json(job)
            source = self.build(told.source)
            seed, shifts = told.plan.seed, told.shift_labels
            self._of_job = Measurer(source, told.resources, seed, self._sleep, shifts)
        source, resources = self.source, self._measurer.resources
        self._reads_stores = reads_stores(source)
        if self._threads is not None:
            self.expect(())
            refuse_threads(source, f"{self._threads.count} decode threads")
        columns = getattr(source, "cost_columns", None)
        self._columns = None if columns is None else columns(resources)
        uniform = getattr(source, "uniform_cost", None) or {}
        if self._columns is None and {*resources} <= {*uniform}:
            self._columns = tuple(
                np.broadcast_to(np.int64(uniform[name]), len(source)) for name in resources
            )
        return len(source), source.fingerprint()

    def close(self) -> None:
        """End the threads, and let the source go with its files; nothing is asked for any more."""
        if self._threads is not None:
            self._threads.close()
        self._of_job = None

    def expect(self, tasks: Collection[SampleTask]) -> None:
        """Begin to read from stores, and to load in threads, what is asked for next, in this order.

        Before a task that is to be alone is asked for, nothing else may be in work.
        """
        threads, measurer = self._threads, self._of_job
        if measurer is None:
            return
        if self._reads_stores:
            probes = not measurer.decodes_first
            soon = tuple(itertools.islice(tasks, STORED_AHEAD))
            wanted = ((task.ref.index, probes and task.kind == "probe") for task in soon)
            expect_samples(measurer.source, wanted)
        if threads is None:
            return
        soon = tuple(itertools.islice(tasks, threads.most_ahead))
        together = itertools.takewhile(lambda task: not task.alone, soon)
        samples = [
            (task.epoch, task.ref.index)
            for task in together
            if task.kind == "decode" or measurer.decodes_first
        ]
        threads.begin(samples, lambda epoch, index: measurer.load(index, epoch))
        if soon and soon[0].alone:
            threads.wait_until_idle()

    def key(self, ref: SampleRef) -> str:
        """Return a sample's key; TypeError where a source of the user's own gives no text."""
        return self._measurer.key(ref.index)

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
        return file_of(self.source, ref.index)

    def probe(self, ref: SampleRef, epoch: int) -> Probed | Decoded:
        """Measure a sample; where that takes decoding it, keep what was decoded."""
        measurer = self._measurer
        if measurer.decodes_first and hasattr(measurer.source, "measure"):
            sample, load_s = self._load(ref, epoch)
            cost = measurer.cost_of(ref.index, sample)
            return self._packed(self.key(ref), cost, sample, load_s)
        found = measurer.probe(ref.index)
        cost = chosen_costs(found, measurer.resources)
        return Probed(ref.ordinal, found.key, cost, found.nbytes or 0)

    def decode(self, ref: SampleRef, epoch: int) -> Decoded:
        """Decode a sample."""
        return self._packed(self.key(ref), (), *self._load(ref, epoch))

    @property
    def source(self) -> Source:
        """The source that is open; ValueError where there is none yet."""
        return self._measurer.source

    @property
    def _measurer(self) -> Measurer:
        if self._of_job is None:
            raise ValueError("this worker has no source: start it with a job that names one")
        return self._of_job

    def _load(self, ref: SampleRef, epoch: int) -> tuple[Any, float]:
        """Return a sample, and how long a thread took for it, if one has loaded it."""
        threads = self._threads
        loaded = None if threads is None else threads.take((epoch, ref.index))
        if loaded is not None:
            return loaded
        return self._measurer.load(ref.index, epoch), 0.0

    def _packed(self, key: str, cost: tuple[int, ...], sample: Any, load_s: float = 0.0) -> Decoded:
        if not self.local and not holds_fields(sample):
            raise SampleError(
                key,
                f"the transform made a {type(sample).__name__}; only a dict of arrays, numbers and "
                "text can go to another host",
            )
        return Decoded(key, cost, *encode_packed(sample), load_s)
