"""Counts the label tokens of a decoded sample: those that a loss per token is divided by."""

from collections.abc import Mapping
from typing import Any

import numpy as np

# The cost that counts them, and the resource of a job that does (balancer/protocol/job_spec.py).
LABEL_TOKENS = "label_tokens"
IGNORED = -100


def count_label_tokens(labels: Any, shift_labels: bool = True) -> int:
    """Return the tokens of one sample that bear loss: labels other than -100, except the first.

    shift_labels: False where the first counts, too: see Balance. labels: None counts as none.

    >>> labels = np.array([7, -100, 8, 9])
    >>> count_label_tokens(labels), count_label_tokens(labels, shift_labels=False)
    (2, 3)
    """
    targets = np.asarray([] if labels is None else labels)
    return int(np.count_nonzero(targets[int(shift_labels) :] != IGNORED))


def find_labels(sample: Any) -> Any:
    """Return a sample's labels, one for each token; None where it has none of that kind.

    >>> find_labels({"labels": [5, 6]}).tolist(), find_labels({"labels": 3}), find_labels("text")
    ([5, 6], None, None)
    """
    if not isinstance(sample, Mapping) or "labels" not in sample:
        return None
    labels = np.asarray(sample["labels"])
    return labels if labels.ndim == 1 and labels.dtype.kind in "iu" else None


def with_label_tokens(
    cost: dict[str, int], sample: Any, shift_labels: bool = True
) -> dict[str, int]:
    """Return the cost of a decoded sample with its label tokens, unless the cost has them.

    >>> with_label_tokens({"tokens": 3}, {"labels": [7, 8, -100]})
    {'tokens': 3, 'label_tokens': 1}
    >>> with_label_tokens({"tokens": 3}, {"text": "abc"})
    {'tokens': 3}
    """
    labels = find_labels(sample)
    if labels is None or LABEL_TOKENS in cost:
        return cost
    return {**cost, LABEL_TOKENS: count_label_tokens(labels, shift_labels)}
