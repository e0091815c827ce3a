"""Compares the label tokens that microbatches have with what costs declare.

A wrong count is a wrong denominator of every loss, which no training loop notices.
"""

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ...balancer.planning.problem.balance import Balance
from ...balancer.planning.problem.layout import as_layout
from ...balancer.protocol.job_spec import IN_BATCHES, LABEL_TOKENS
from ...balancer.run.steps import COMPARED
from ...workers.sources.interface import Source
from ...workers.sources.labels import IGNORED, count_label_tokens, find_labels
from ...workers.sources.randomness import global_randomness
from .errors import LoaderError

if TYPE_CHECKING:
    from ...workers.collate.labels import BatchLabels

logger = logging.getLogger(__name__)
# The first samples of a source may be broken; after this many the question is left open.
TRIES = 8
# Keys that an error names.
QUOTED = 4


def clear_labels(batch: Any) -> Any:
    """Return a batch with all its labels -100, for losses that are sums over labels."""
    if isinstance(batch, MutableMapping) and "labels" in batch:
        batch["labels"] = torch.full_like(batch["labels"], IGNORED)
    return batch


def _allowed(labels: "BatchLabels", shift_labels: bool) -> tuple[int, int]:
    """Return the counts that may be right, one for each place: only one where it is known."""
    aligned = labels[:2][not shift_labels]
    return aligned, aligned if labels[2] == "at" else labels[1]


def _may_be_filled(labels: Any, declared: int, shift_labels: bool = True) -> bool:
    """Return whether rows (B, L) filled up with a label that is not -100 may have that many.

    Those that end a row alike may be filling, for a loss that is told to ignore them.

    >>> rows = [[5, 6, 7, 8], [9, 4, 0, 0]]
    >>> [_may_be_filled(rows, declared) for declared in (3, 4, 7)]
    [False, True, True]
    """
    rows = np.asarray(labels)
    if rows.ndim != 2 or len(rows) < 2 or not rows.size:
        return False
    bears = rows != IGNORED
    for fill in set(rows[:, -1].tolist()) - {IGNORED}:
        ends = np.logical_and.accumulate(rows[:, ::-1] == fill, axis=1)[:, ::-1]
        least = np.count_nonzero((bears & ~ends)[:, int(shift_labels) :])
        # a sample may end as the filling does: some of these labels are its own
        if least <= declared < np.count_nonzero(bears):
            return True
    return False


def find_label_source(
    source: Source | None, balance: Balance, resources: tuple[str, ...],
    collate_fn: Callable[[list[Any]], Any] | None,
) -> str:  # fmt: skip
    """Return the counter of label tokens, as JobSpec has it: a resource, or "batch".

    The first sample decides where nothing is said and it has to be decoded anyway: to look whether
    collate_fn makes labels of it, or others than it has. Other sources are not read here, where a
    file that they open would be shared with the workers.
    """
    if balance.label_tokens is not None:
        return balance.label_tokens
    is_open = as_layout(balance.layout) is None and collate_fn not in (None, default_collate)
    if not (is_open and source is not None and source.decode_first):
        return LABEL_TOKENS
    are_counted = LABEL_TOKENS in resources
    in_batches = _makes_labels(source, collate_fn, are_counted, balance.shift_labels)
    return IN_BATCHES if in_batches else LABEL_TOKENS


def _makes_labels(source: Any, collate_fn: Any, are_counted: bool, shift_labels: bool) -> bool:
    """Return whether a batch of the first sample that can be read has labels to be counted.

    are_counted: the sample's own are; the question is then whether the batch has as many.
    """
    from ...workers.collate.labels import read_batch_labels  # here: as below

    for index in range(min(len(source), TRIES)):
        try:
            sample = source.load(index, epoch=0, seed=0)
        except Exception:  # on_error says what comes of it, when its turn has come
            continue
        try:
            with global_randomness(0, 0, "collate"):
                counts = read_batch_labels(collate_fn([sample]))
        except Exception:  # it is raised again where the first batch is made
            return False
        labels = find_labels(sample)
        if counts is None or not are_counted:
            return counts is not None
        declared = None if labels is None else count_label_tokens(labels, shift_labels)
        return declared is not None and declared not in _allowed(counts, shift_labels)
    return False


@dataclass(slots=True)
class LabelCheck:
    """Compares the first microbatches that have labels.

    `resource` is the name of the count. `laid`: a layout has laid the labels. Where collate_fn has,
    nothing but shift_labels=False says where they stand: either count may be right, for all alike.
    """

    resource: str
    laid: bool
    shift_labels: bool = True
    left: int = COMPARED
    _left_of_batches: int = COMPARED
    _has_warned: bool = False
    # Which of the two counts has fitted all: those of the samples, and of the batches.
    _fits: list[tuple[bool, ...]] = field(default_factory=lambda: [(True, True)] * 2)

    def compare(self, at_token: int, before: int, declared: int, keys: Sequence[str]) -> None:
        """Raise LoaderError for a microbatch whose samples have another number of label tokens.

        They were counted in both ways.
        """
        if self.left <= 0:
            return
        self.left -= 1
        counts = at_token, before
        laid = _allowed((*counts, "at"), self.shift_labels) if self.laid else counts
        if not self._fit(0, laid, declared):
            raise self._refusal(
                f"the cost {self.resource!r} of samples {', '.join(keys[:QUOTED])} says that they "
                f"have {declared} label tokens, and their labels have", counts, declared,
                "count them so in the cost, or name the one that does: Balance(label_tokens=...)",
            )  # fmt: skip

    def compare_batch(
        self, batch: Mapping[Any, Any], declared: int | None, keys: Sequence[str]
    ) -> None:
        """Raise LoaderError for a batch with labels, where others are left in it than are counted.

        declared: None where no cost counts them, or a framework counts them itself. The layouts'
        own batches have those of their samples. A warning says it where labels are seen to be
        shifted already, and Balance does not say so.
        """
        if self._left_of_batches <= 0:
            return
        from ...workers.collate.labels import read_batch_labels  # here: other loops need none of it

        if (counts := read_batch_labels(batch)) is None:
            return
        self._left_of_batches -= 1
        is_counted = not self.laid and declared == counts[1]
        if counts[2] == "before" and self.shift_labels and not (is_counted or self._has_warned):
            self._has_warned = True
            logger.warning(
                "the labels of samples %s are the next tokens already (x = t[:-1], y = t[1:]), and "
                "are taken for those of a model that shifts them: give "
                "Layout(..., shift_labels=False), or labels that stand at their own tokens",
                ", ".join(keys[:QUOTED]),
            )
        if self.laid or declared is None:
            return
        fits = self._fit(1, _allowed(counts, self.shift_labels), declared)
        if not (fits or _may_be_filled(batch["labels"], declared, self.shift_labels)):
            raise self._refusal(
                f"samples {', '.join(keys[:QUOTED])} have {declared} label tokens by "
                f"{self.resource!r}, and the batch that collate_fn has made of them", counts[:2],
                declared, "if it is to be divided by the batches' labels, give "
                'Balance(label_tokens="batch")',
            )  # fmt: skip

    def _fit(self, which: int, allowed: tuple[int, int], declared: int) -> bool:
        """Return whether a count fits: one reading has to, all microbatches alike."""
        pairs = zip(self._fits[which], allowed, strict=True)
        fits = tuple(may and declared == count for may, count in pairs)
        if any(fits):
            self._fits[which] = fits
        return any(fits)

    def _refusal(
        self, subject: str, counts: tuple[int, int], declared: int, remedy: str
    ) -> LoaderError:
        rule, more = "not a sample's first", "each label is the next token already, give"
        if not self.shift_labels:
            rule, more = "shift_labels is False", "the loss compares i with label i + 1, leave"
        fits_otherwise = declared == counts[self.shift_labels]
        advice = f"; if {more} Layout(..., shift_labels=False)" * fits_otherwise
        return LoaderError(
            f"{subject} {counts[not self.shift_labels]} (other than -100, and {rule}): a loss per "
            f"token would be divided by the wrong number; {remedy}{advice}"
        )
