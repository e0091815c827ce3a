"""Measures and decodes a source's samples, and packs them for the wire."""

import time
from collections.abc import Callable
from typing import Any

from ...balancer.protocol.job_spec import LABEL_TOKENS, from_json
from ...balancer.protocol.messages import Probed, SampleRef
from ..codec.frames import encode_packed, holds_fields
from ..sources.failures import RETRIES, load_with_retries
from ..sources.interface import Probe, SampleError, Source, checked_probe, file_of, source_name
from ..sources.labels import labels_of
from .loop import Decoded


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
    ) -> None:
        self.source = source
        self.resources = resources
        self.seed = seed
        self.local = local
        self.build = build
        self.sleep = sleep

    def open(self, job: str) -> tuple[int, str]:
        """Return the number of samples and the fingerprint; ValueError says what is missing."""
        if job and self.build is not None:
            told = from_json(job)
            self.resources = told.resources
            self.seed = told.plan.seed
            self.source = self.build(told.source)
        source = self._source()
        return len(source), source.fingerprint()

    def key(self, ref: SampleRef) -> str:
        """Return a sample's key."""
        return self._source().key(ref.index)

    def file_of(self, ref: SampleRef) -> str:
        """Return the file that a sample is in, empty where the source does not say."""
        return file_of(self._source(), ref.index)

    def probe(self, ref: SampleRef, epoch: int) -> Probed | Decoded:
        """Measure a sample; where that takes decoding it, keep what was decoded."""
        source = self._source()
        measure = getattr(source, "measure", None)
        if getattr(source, "decode_first", False) and measure is not None:
            sample = self._load(ref, epoch)
            found = checked_probe(Probe(source.key(ref.index), measure(sample)))
            if LABEL_TOKENS not in found.cost and labels_of(sample) is None:
                found.cost[LABEL_TOKENS] = 0  # others have labels: what is counted was settled once
            return self._packed(found.key, self._cost(found), sample)
        probed = self._retried(lambda: source.probe(ref.index))
        found = checked_probe(probed, source.key(ref.index))
        return Probed(ref.ordinal, found.key, self._cost(found), found.nbytes or 0)

    def decode(self, ref: SampleRef, epoch: int) -> Decoded:
        """Decode a sample."""
        return self._packed(self.key(ref), (), self._load(ref, epoch))

    def _source(self) -> Source:
        if self.source is None:
            raise ValueError("this worker has no source: start it with a job that names one")
        return self.source

    def _load(self, ref: SampleRef, epoch: int) -> Any:
        return self._retried(lambda: self._source().load(ref.index, epoch, self.seed))

    def _retried(self, action: Callable[[], Any]) -> Any:
        source = source_name(self._source())
        return load_with_retries(action, self.sleep, RETRIES, source)

    def _cost(self, found: Probe) -> tuple[int, ...]:
        missing = [name for name in self.resources if name not in found.cost]
        if missing:
            raise SampleError(
                found.key,
                f"has no cost named {', '.join(missing)}; its costs are {', '.join(found.cost)}",
            )
        return tuple(found.cost[name] for name in self.resources)

    def _packed(self, key: str, cost: tuple[int, ...], sample: Any) -> Decoded:
        if not self.local and not holds_fields(sample):
            raise SampleError(
                key,
                f"the transform made a {type(sample).__name__}; only a dict of arrays, numbers and "
                "text can go to another host",
            )
        return Decoded(key, cost, *encode_packed(sample))
