"""Counts the label tokens of microbatches, and compares them with what costs declare.

Labels stand at their token, as Hugging Face's collators make them: models shift them inside. So a
row's first label is predicted by nothing, nor is that of each sample in a packed row. A wrong count
is a wrong denominator of every loss, which no training loop notices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ...balancer.planning.problem.balance import Balance
from ...balancer.protocol.job_spec import IN_BATCHES, LABEL_TOKENS
from ...workers.sources.interface import Source
from ...workers.sources.labels import IGNORED, count_label_tokens, labels_of
from ...workers.sources.randomness import global_randomness
from .errors import LoaderError

# The first samples of a source may be broken; after this many the question is left open.
TRIES = 8
# Microbatches of a process that are compared; what is counted wrong is so in the first ones.
COMPARED = 16
# Keys that an error names.
QUOTED = 4


def count_label_tokens_of(batch: Any, samples: Sequence[Any]) -> int:
    """Return the label tokens of a batch; of its samples, where the batch has none to be counted.

    >>> batch = {"labels": torch.tensor([[5, 6, 7], [8, -100, 9]])}
    >>> count_label_tokens_of(batch, []), count_label_tokens_of(None, [{"labels": [5, 6]}])
    (3, 1)
    """
    found = count_batch_labels(batch)
    if found is not None:
        return found
    labels = (labels_of(sample) for sample in samples)
    return sum(count_label_tokens(each) for each in labels if each is not None)


def count_batch_labels(batch: Any) -> int | None:
    """Return the labels other than -100 of a batch's field `labels`, without each row's first.

    labels: whole numbers (B, L); or (T,) or (1, T) beside `position_ids` or `cu_seq_lens`, in which
    samples begin where position_ids is 0, or at each of cu_seq_lens. None where it has no such
    field: labels (B,) alone are classes.

    >>> packed = {"labels": torch.tensor([5, 6, 7, 8]), "position_ids": torch.tensor([0, 1, 0, 1])}
    >>> count_batch_labels(packed), count_batch_labels({"labels": torch.tensor([1, 0])})
    (2, None)
    """
    found = _readings(batch)
    return None if found is None else found[0]


def _readings(batch: Any) -> tuple[int, int] | None:
    """Return the labels of a batch if they stand at their token, and if at the token before.

    The same number twice where they are seen to stand at their token; None for no labels.
    """
    labels = _integers(batch, "labels") if isinstance(batch, Mapping) else None
    if labels is None or labels.ndim not in (1, 2):
        return None
    # A model predicts the next token, so the first label of each sample is never used.
    bears = labels != IGNORED
    every = int(np.count_nonzero(bears))
    positions, starts = _integers(batch, "position_ids"), _integers(batch, "cu_seq_lens")
    if positions is not None and positions.shape == labels.shape:
        bears = bears & (positions != 0)
    elif starts is not None and (labels.ndim == 1 or len(labels) == 1):
        bears = bears.copy()
        bears.reshape(-1)[starts[starts < labels.size]] = False
    elif labels.ndim == 1:
        return None
    at_token = int(np.count_nonzero(bears[:, 1:] if labels.ndim == 2 else bears))
    ids = _integers(batch, "input_ids")
    if ids is not None and ids.shape == labels.shape:
        kept = labels != IGNORED
        if np.array_equal(ids[kept], labels[kept]):
            return at_token, at_token
    return at_token, every


def _may_be_filled(labels: Any, declared: int) -> bool:
    """Return whether rows (B, L) filled up with a label that is not -100 may have that many.

    Those that end a row alike may be filling, for a loss that is told to ignore them.

    >>> rows = torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0]])
    >>> [_may_be_filled(rows, declared) for declared in (3, 4, 7)]
    [False, True, True]
    """
    rows = np.asarray(labels)
    if rows.ndim != 2 or len(rows) < 2 or not rows.size:
        return False
    bears = rows != IGNORED
    for fill in set(rows[:, -1].tolist()) - {IGNORED}:
        ends = np.logical_and.accumulate(rows[:, ::-1] == fill, axis=1)[:, ::-1]
        least = np.count_nonzero((bears & ~ends)[:, 1:])
        # a sample may end as the filling does: some of these labels are its own
        if least <= declared < np.count_nonzero(bears):
            return True
    return False


def find_label_source(
    source: Source | None,
    balance: Balance,
    resources: tuple[str, ...],
    collate_fn: Callable[[list[Any]], Any] | None,
) -> str:
    """Return the counter of label tokens, as JobSpec has it: a resource, or "batch".

    The first sample decides where nothing is said and it has to be decoded anyway: to look whether
    collate_fn makes labels of it, or others than it has. Other sources are not read here, where a
    file that they open would be shared with the workers.
    """
    if balance.label_tokens is not None:
        return balance.label_tokens
    is_open = balance.layout == "torch" and collate_fn not in (None, default_collate)
    is_open = is_open and getattr(source, "decode_first", False)
    if is_open and _makes_labels(source, collate_fn, LABEL_TOKENS in resources):
        return IN_BATCHES
    return LABEL_TOKENS


def _makes_labels(source: Any, collate_fn: Any, are_counted: bool) -> bool:
    """Return whether a batch of the first sample that can be read has labels to be counted.

    are_counted: the sample's own are; the question is then whether the batch has as many.
    """
    for index in range(min(len(source), TRIES)):
        try:
            sample = source.load(index, epoch=0, seed=0)
        except Exception:  # on_error says what comes of it, when its turn has come
            continue
        try:
            with global_randomness(0, 0, "collate"):
                found = _readings(collate_fn([sample]))
        except Exception:  # it is raised again where the first batch is made
            return False
        labels = labels_of(sample)
        if found is None or not are_counted:
            return found is not None
        return labels is not None and count_label_tokens(labels) not in found
    return False


def _integers(batch: Mapping[str, Any], name: str) -> np.ndarray | None:
    """Return a field of whole numbers as an array, None where it is anything else."""
    value = batch.get(name)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy() if not value.is_floating_point() else None
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "iu" else None


@dataclass(slots=True)
class LabelCheck:
    """Compares the first microbatches that have labels.

    `resource` is the name of the count. Labels may stand at their token, so that a sample's first
    predicts nothing (`shifted`, always so in layouts "padded" and "packed"), or at the token before
    theirs: where collate_fn makes the batch either may be, for all samples alike.
    """

    resource: str
    shifted: bool
    left: int = COMPARED
    _left_of_batches: int = COMPARED
    _fits: tuple[bool, bool] = (True, True)
    _batches_fit: tuple[bool, bool] = (True, True)

    def compare(self, at_token: int, before: int, declared: int, keys: Sequence[str]) -> None:
        """Raise LoaderError for a microbatch whose samples have another number of label tokens.

        They were counted in both ways.
        """
        if self.left <= 0:
            return
        self.left -= 1
        # one reading has to fit all microbatches, not another one each time
        fits = self._fits[0] and declared == at_token, self._fits[1] and declared == before
        if not any(fits[:1] if self.shifted else fits):
            raise LoaderError(
                f"the cost {self.resource!r} of samples {', '.join(keys[:QUOTED])} says that they "
                f"have {declared} label tokens, and their labels have {at_token} (other than -100, "
                "and not a sample's first): a loss per token would be divided by the wrong number; "
                "count them so in the cost, or name the one that does: Balance(label_tokens=...)"
            )
        self._fits = fits

    def compare_batch(self, batch: Any, declared: int, keys: Sequence[str]) -> None:
        """Raise LoaderError for a batch in which collate_fn has left other labels than are counted.

        The layouts' own batches have those of their samples.
        """
        found = None if self.shifted or self._left_of_batches <= 0 else _readings(batch)
        if found is None:
            return
        self._left_of_batches -= 1
        fits = tuple(may and declared == n for may, n in zip(self._batches_fit, found, strict=True))
        if not any(fits):
            if _may_be_filled(batch["labels"], declared):
                return
            raise LoaderError(
                f"samples {', '.join(keys[:QUOTED])} have {declared} label tokens by "
                f"{self.resource!r}, and the batch that collate_fn has made of them {found[0]} "
                "(labels other than -100, and not a sample's first): a loss per token would be "
                "divided by the wrong number; if it is to be divided by the batches' labels, give "
                'Balance(label_tokens="batch")'
            )
        self._batches_fit = fits[0], fits[1]
