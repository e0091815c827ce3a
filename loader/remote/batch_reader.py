"""Makes a rank's batches of what workers keep of them, as a local loop's workers make theirs."""

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from ...balancer.parties.incoming import IncomingBatch
from ...balancer.parties.messages import GiveBatch
from ...balancer.protocol.job_spec import JobSpec
from ...balancer.run.tasks import LoadedBatch, LocalArrival
from ...workers.codec.batches import decode_batch, list_frames
from ...workers.codec.contents import CodecError
from ...workers.codec.local_frames import decode_local, list_local_frames
from ...workers.collate.described import describe_layout
from ...workers.collate.labels import count_batch_label_tokens
from ...workers.planned.reader import collate_seeded
from ..balanced.step_infos import OverBudget, make_info
from ..collate.chosen import BatchMaker


@dataclass(frozen=True, slots=True)
class BatchReader:
    """How a job's batches are made; takes_empty: also of no samples.

    on_host: by workers that trainers of this host have started, which send any object.
    """

    job: JobSpec
    batches: BatchMaker
    takes_empty: bool
    on_host: bool = False

    @property
    def layout(self) -> str:
        """How workers make batches, as JSON."""
        described = {"kind": "workers"}
        if not self.on_host:
            described = describe_layout(self.batches.balance, self.batches.collate_fn)
        return json.dumps(described | {"takes_empty": self.takes_empty})

    def needed_fields(self, give: GiveBatch, epoch: int) -> Container[str] | None:
        """Return the fields of a batch that this process needs, None for all; of samples all."""
        fields, job = self.batches.fields, self.job
        if fields is None or not give.is_batch:
            return None
        if not callable(fields):
            return fields
        over = OverBudget({})
        return fields(make_info(give.facts, epoch, job.plan.ranks, job.resources, over, None))

    def read(self, give: GiveBatch, number: int, frames: Sequence[Any], epoch: int) -> Any:
        """Return what a piece holds: a batch, or a list of samples.

        Raises CodecError for what no worker can have kept for it.
        """
        decode = decode_local if self.on_host else decode_batch
        value = decode(frames, self.needed_fields(give, epoch))
        places = give.pieces[number].places
        if not give.is_batch and (type(value) is not list or len(value) != len(places)):
            raise CodecError(f"needed is a list of {len(places)} samples")
        return value

    def list_frames(
        self, head: Any, sizes: Sequence[int], fields: Container[str] | None
    ) -> list[int]:
        """Return the numbers of the frames that fields need; see list_frames of codec/batches."""
        return (list_local_frames if self.on_host else list_frames)(head, sizes, fields)

    def make(self, incoming: IncomingBatch, epoch: int) -> LoadedBatch:
        """Return a microbatch whose pieces are here; raises what collate_fn raises."""
        give, pieces = incoming.give, incoming.frames
        tokens = None if give.label_tokens < 0 else give.label_tokens
        labels = (give.labels[0], give.labels[1]) if give.labels else None
        if give.is_batch or not (pieces or self.takes_empty):
            return LoadedBatch(pieces.get(0), labels=labels, label_tokens=tokens)
        placed = {
            place: dict(sample) if type(sample) is dict else sample  # it may be collated again
            for number, piece in enumerate(give.pieces)
            for place, sample in zip(piece.places, pieces[number], strict=True)
        }
        samples = [placed[place] for place in sorted(placed)]
        job, batch = self.job, self._collate(samples, epoch, give.first)
        if job.counts_batches:  # a sample that only fills a step up weighs nothing
            counts = bool(give.facts.keys)
            tokens = count_batch_label_tokens(batch, samples, job.shift_labels) if counts else 0
        return LoadedBatch(batch, labels=labels, label_tokens=tokens)

    def _collate(self, samples: list[Any], epoch: int, first: int) -> Any:
        collate_fn = self.batches.in_worker
        if not self.batches.draws:
            return collate_fn(samples)
        return collate_seeded(collate_fn, samples, self.job.plan.seed, epoch, first)


@dataclass(slots=True)
class PulledArrival(LocalArrival):
    """A microbatch that is made when it is unpacked; loaded: its pieces (an IncomingBatch)."""

    loaded: Any
    reader: BatchReader
    epoch: int

    def unpack(self) -> LoadedBatch:
        """Return the microbatch; raises what collate_fn raises."""
        return self.reader.make(self.loaded, self.epoch)
