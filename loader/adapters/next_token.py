"""Batches without end, and (inputs, labels) of each, a label at the token that predicts it.

Our layouts have labels aligned with their tokens, and Hugging Face models shift them inside;
torchtitan's and Megatron-LM's losses compare position i with labels[i]. With
Layout(..., shift_labels=False) they are so already.
"""

from collections.abc import Container, Iterator
from typing import Any

import torch
from torch.nn.functional import pad

from ...workers.sources.labels import IGNORED

# Fields that keep packed samples apart elsewhere: positions that restart say it here.
LEFT_OUT = (
    "cu_seq_lens", "cu_seq_lens_padded", "max_length", "pad_sequences", "attention_mask",
)  # fmt: skip


def next_token_batch(
    batch: dict[str, Any], flat: bool = False, shift_labels: bool = True
) -> tuple[dict[str, Any], torch.Tensor]:
    """Return ({"input": ids, "positions": positions, other fields}, labels), shapes (B, L).

    batch: of layout "padded" or "packed". flat: shapes (T,) of a single row. shift_labels: as in
    Balance. Raises ValueError for a batch that has several rows where one is wanted, or a field
    "input" or "positions".

    >>> batch = {"input_ids": torch.tensor([[5, 6, 7]]), "labels": torch.tensor([[-100, 6, 7]])}
    >>> inputs, labels = next_token_batch(batch)
    >>> inputs["input"].tolist(), inputs["positions"].tolist(), labels.tolist()
    ([[5, 6, 7]], [[0, 1, 2]], [[6, 7, -100]])
    """
    ids, labels = batch["input_ids"], batch["labels"]
    positions = batch.get("position_ids")
    if positions is None:
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    if flat and len(ids) != 1:
        raise ValueError(
            f"a microbatch has {len(ids)} rows, and torchtitan after 0.3.0 takes one: give the "
            'loader Balance(layout="packed")'
        )
    shifts = int(shift_labels)
    shifted = pad(labels[:, shifts:], (0, shifts), value=IGNORED)
    named = ("input_ids", "labels", "position_ids", *LEFT_OUT)
    more_fields = {name: value for name, value in batch.items() if name not in named}
    if flat:
        ids, positions, shifted = ids[0], positions[0], shifted[0]
    inputs = {"input": ids, "positions": positions}
    return {**inputs, **unlike(inputs, more_fields)}, shifted


def shifts_labels(loader: Any) -> bool:
    """Return whether labels of a loader's batches stand at their tokens, and are to be shifted."""
    arguments = getattr(loader, "_arguments", None)
    return arguments is None or bool(arguments.balance.shift_labels)


def unlike(converted: Container[str], more_fields: dict[str, Any]) -> dict[str, Any]:
    """Return a batch's other fields; ValueError for one that would replace what was made of it."""
    if taken := [name for name in more_fields if name in converted]:
        raise ValueError(
            f"samples have a field {taken[0]!r}, and the framework's batch has one of that name, "
            "made of input_ids and labels: leave the samples' out, or give it another name"
        )
    return more_fields


def repeat_epochs(loader: Any) -> Iterator[Any]:
    """Yield a loader's batches, epoch after epoch; a loader without any ends it."""
    has_batch = True  # a ledger may be at the end of its epoch: no batch comes once
    while has_batch:
        has_batch = False
        for _ in range(2):
            for batch in loader:
                has_batch = True
                yield batch
