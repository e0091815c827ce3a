"""One run: an epoch, from a position, on its way through the workers to the ranks.

A run joins the planning feed (what to probe, when to plan), the delivery (what to decode, what is
ready) and the leases (who does it). Nothing here sends a message.

A result of a worker is *rubbish* if no worker of this version could send it: of a sample that is
not on its lease, with another number of costs, with a payload that is not what its header says. The
sample is leased again. Who is blamed a few times is turned away by the handlers.
"""

from collections.abc import Callable, Sequence

from ...protocol.messages import SampleFailed, StartRun
from ...protocol.parts import DecodedItem, Probed
from ...protocol.payload_messages import ProbeDone
from ..delivery.sample import Payload, Sample
from ..delivery.step import Position
from .granting import SampleWork

# Returns why a payload cannot be read with its header (workers/codec/sample_layout.py), or "".
LayoutCheck = Callable[[bytes, object], str]
# A payload cannot be larger than the largest frame; that of another host is smaller.
MAX_PAYLOAD_BYTES = 8 << 30
MAX_PULLED_BYTES = 1 << 30
SHOWN = 80


# A worker that has sent rubbish, and what.
Blame = tuple[bytes, str]


def why_bad_costs(cost: tuple[int, ...], nbytes: int, resources: int) -> str:
    """Return why these cannot be the costs and the size of a sample, "" if they can.

    >>> why_bad_costs((3, 5), 100, resources=2), why_bad_costs((3,), 100, resources=2)
    ('', '1 costs, 2 are needed')
    """
    if len(cost) != resources:
        return f"{len(cost)} costs, {resources} are needed"
    if not 0 <= nbytes <= MAX_PAYLOAD_BYTES:
        return f"a payload of {nbytes} bytes"
    return ""


def why_not_readable(payload: Payload, check_layout: LayoutCheck | None) -> str:
    """Return why no rank could read a payload, "" if they can; `check_layout`: see EpochRun.

    Of one that is pulled the ranks compare it with its header, once they have it.
    """
    if not payload.serial:
        return "" if check_layout is None else check_layout(payload.header, payload.frame)
    if payload.server is None:
        return "a payload that it keeps, where no rank can pull it"
    if not 0 < payload.nbytes <= MAX_PULLED_BYTES:
        return f"a payload of {payload.nbytes} bytes, to be pulled"
    return ""


class EpochRun(SampleWork):
    """The state of one run, and what results of workers and ranks do to it."""

    # With it workers are doubted: what they send must be readable.
    check_layout: LayoutCheck | None = None
    # Whether ranks that asked for more were told that the epoch has ended.
    end_is_known = False

    # --- results of workers

    def store_costs(self, worker: bytes, message: ProbeDone, now: float) -> list[Blame]:
        """Store the results of a probe lease; return who is to blame for what is rubbish."""
        blamed: list[Blame] = []
        ordinals = [result.ordinal for result in message.results]
        kind, found = self._complete(worker, message.lease, ordinals, now, blamed)
        resources = len(self.job.resources)
        measured: list[tuple[Sample, Probed]] = []
        for result in message.results:
            sample = found.pop(result.ordinal, None)
            if sample is None:
                continue
            if sample.crash_count:
                sample.crash_count = 0  # no worker died of probing it
            reason = why_bad_costs(result.cost, result.nbytes, resources)
            if kind != "probe":
                reason = "costs, where it was to be decoded"
            if reason:
                blamed.append(self._reject(worker, kind, sample, result, reason))
            else:
                measured.append((sample, result))
        self.feed.samples.note_measured(self.feed.store_costs(measured))
        return blamed

    def store_payloads(
        self, worker: bytes, lease: int, decoded: Sequence[tuple[DecodedItem, Payload]], now: float
    ) -> list[Blame]:
        """Store decoded samples; under a probe lease they bring their costs along.

        Returns who is to blame for what is rubbish.
        """
        blamed: list[Blame] = []
        ordinals = [item.ordinal for item, _ in decoded]
        kind, found = self._complete(worker, lease, ordinals, now, blamed)
        good: list[tuple[Sample, Payload]] = []
        for item, payload in decoded:
            sample = found.pop(item.ordinal, None)
            if sample is None:
                continue
            reason = why_not_readable(payload, self.check_layout)
            if kind == "probe" and not reason:
                reason = why_bad_costs(item.cost, payload.nbytes, len(self.job.resources))
            if reason:
                blamed.append(self._reject(worker, kind, sample, item, reason))
            elif sample.key and sample.key != item.key:
                # Who is right nobody knows: their data differ, and so would what is trained on.
                who = worker.decode(errors="replace")
                reason = (
                    f"worker {who:.{SHOWN}} calls it {item.key!r:.{SHOWN}}, unlike the one that "
                    "measured it: give all workers the same data"
                )
                self.give_up(sample, sample.key, reason, io=True)
            else:
                sample.key = item.key
                if kind == "probe":
                    costs = Probed(item.ordinal, item.key, item.cost, payload.nbytes)
                    self.feed.store_costs([(sample, costs)])
                good.append((sample, payload))
        self.delivery.store(good)
        return blamed

    def _reject(
        self, worker: bytes, kind: str, sample: Sample, result: Probed | DecodedItem, reason: str
    ) -> Blame:
        """Lease a sample again whose result is rubbish; return who is to blame."""
        self.requeue(kind, sample)
        name = f"{sample.key or result.key!r:.{SHOWN}}"
        return worker, f"it answers sample {name} with rubbish: {reason}"

    def store_failure(self, worker: bytes, message: SampleFailed, now: float) -> list[Blame]:
        """Store that a sample cannot be used; return who is to blame for what is rubbish."""
        blamed: list[Blame] = []
        _, found = self._complete(worker, message.lease, [message.ordinal], now, blamed)
        for sample in found.values():
            self.give_up(sample, message.key, message.reason, message.io, message.source)
        return blamed

    def _complete(
        self, worker: bytes, lease: int, ordinals: list[int], now: float, blamed: list[Blame]
    ) -> tuple[str, dict[int, Sample]]:
        """Take samples off their lease, and return the leases that the worker has skipped.

        A worker that cannot have been leased them is added to those to blame.
        """
        held = self.leases.find(worker, lease)
        # Of leases that are over it is not known what they were granted with.
        granted = held.granted if held else () if lease > self.leases.last else ordinals
        for ordinal in [each for each in ordinals if each not in granted]:
            reason = f"it answers sample {ordinal} under lease {lease}, where that is not"
            blamed.append((worker, reason))
        kind, found = self.leases.complete(worker, lease, ordinals, now)
        if found:
            self.give_back(self.leases.take_skipped(worker, lease))
        return kind, found

    # --- progress of ranks

    def position_after(self, rank: int, step: int, microbatch: int) -> Position:
        """Return the position after a microbatch: in the next step, if it is a step's last."""
        planned = self.delivery.steps.get(step)
        # An acknowledgement that came before its step was planned ends the step when it is, so that
        # only those that are repeated find out that it was the step's last.
        is_last = step <= self.delivery.last_over
        if planned is not None:
            is_last = planned.find(rank, microbatch + 1) is None
        return (step + 1, 0) if is_last else (step, microbatch + 1)

    def starts_after(self, begin: StartRun, ranks: tuple[int, ...]) -> bool:
        """Return whether ranks start this run before what it (still) has for them."""
        first, here, needed = self.begin.start, begin.start, self.delivery.progress.needed
        # What one of its ranks has had is gone, whatever the others still need.
        earliest = max((first.step, first.microbatch), *(needed([rank]) for rank in ranks))
        return begin.run == self.number and (here.step, here.microbatch) < earliest
