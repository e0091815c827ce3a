"""Names why a model's loss depends on how samples are batched, by experiments on few samples.

Each changes one thing that must not matter and looks whether the loss does: tokens of the sample
before, what rows are filled up with, labels of others.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ...workers.collate.fields import Batch
from ...workers.sources.labels import IGNORED

Sample = dict[str, Any]
# (base, samples, pad_id=0) -> batch
Collate = Callable[..., Batch]
# Tokens that a row is filled up with where padding is tried.
FILLED = 8
BORDERS = (
    "attention across borders: a packed sample's loss changes with the tokens of the sample before "
    "it; the model must use cu_seq_lens or position_ids (Hugging Face: cp.hf_kwargs(batch, model))"
)
POSITIONS = (
    "position ids: a packed sample's loss is not what it is alone, though it does not see the "
    "sample before it; positions must restart with every sample (batch['position_ids'])"
)
PADDING = (
    "attention to padding: the loss changes with pad_id; the model must use attention_mask, and "
    "the loss must leave out labels -100"
)
UNLABELLED = (
    "a term over tokens without a label: with no label at all the loss is not 0, as with a z-loss, "
    "an auxiliary loss or a label smoothing that counts them; sum it over label tokens only"
)
MEAN = (
    "a mean: the loss of the same sample twice is not twice its loss; give the sum over label "
    "tokens (reduction='sum'), which scale_loss() divides"
)
NOT_PLAIN = (
    "not the plain cross-entropy: the model's own loss has another term (z-loss, an auxiliary "
    "loss) or label smoothing, and its mean is over other tokens than those with a label"
)


def find_causes(
    total: Callable[[Batch], float],
    samples: Sequence[Sample],
    tolerance: float,
    plain: Callable[[Batch], float] | None,
    collate: Collate,
    per_token: Collection[str],
) -> list[str]:
    """Return what differs, of all that can be found out with these samples.

    total: the model's sum of losses of a batch. plain: the cross-entropy of its logits, nothing
    added; None where that is not known. collate: makes a batch of a base, "padded" or "packed".
    per_token: fields that have a value for each token.
    """

    def is_far(one: float, other: float) -> bool:
        return not abs(one - other) <= tolerance * max(abs(one), abs(other))

    pictured = [len(sample.get("pixel_values", ())) > 0 for sample in samples]
    labelled = [(sample["labels"] != IGNORED).any() for sample in samples]
    usable = [s for s, has, p in zip(samples, labelled, pictured, strict=True) if has and not p]
    if not usable:
        return []
    one, other = usable[0], max(usable[1:] or usable, key=lambda s: len(s["input_ids"]))
    alone, before = total(collate("padded", [one])), _unlabelled(one)
    if abs(total(collate("padded", [before]))) > tolerance * abs(alone):
        return [UNLABELLED]  # whatever is changed, its own loss changes: nothing else shows
    changed = {**before, "input_ids": _other_tokens(one["input_ids"])}
    after = total(collate("packed", [before, other]))
    crosses = is_far(after, total(collate("packed", [changed, other])))
    count = len(one["input_ids"]) + FILLED
    longer = {
        name: np.resize(value, (*np.shape(value)[:-1], count))
        for name, value in other.items()
        if name in per_token
    }
    rows = [one, _unlabelled({**other, **longer})]
    twice = total(collate("padded", [one, one]))
    found = (
        (BORDERS, crosses),
        (POSITIONS, not crosses and is_far(after, total(collate("packed", [other])))),
        (PADDING, is_far(*(total(collate("padded", rows, pad_id=pad)) for pad in (0, 1)))),
        (MEAN, abs(twice - alone) < abs(twice - 2 * alone)),
        (NOT_PLAIN, plain is not None and is_far(alone, plain(collate("padded", [one])))),
    )
    return [name for name, differs in found if differs]


def _other_tokens(ids: Any) -> Any:
    """Return as many tokens, each another one; ids 0 and 1 are in every vocabulary.

    >>> _other_tokens(np.array([0, 7, 1, 7])).tolist()
    [1, 0, 7, 0]
    """
    known = np.unique([0, 1, *ids])
    return known[(np.searchsorted(known, ids) + 1) % len(known)]


def _unlabelled(sample: Sample) -> Sample:
    return {**sample, "labels": np.full(len(sample["input_ids"]), IGNORED)}
