"""`megatron_iterators`: a loader as Megatron-LM's external data iterators.

With `--dataloader-type external` Megatron-LM hands what its `train_valid_test_datasets_provider`
returns to the pipeline schedule: one iterator for each virtual stage, which all take the same
microbatches, one after the other and without end. A checkpoint asks the first for `save_state()`.
Read in Megatron-LM at d98e8a64; its RerunDataIterator is that of megatron-core 0.16.1.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import tee
from typing import Any

from ...workers.sources.labels import IGNORED
from .next_token import next_token_batch, repeat_epochs, shifts_labels, unlike

# Megatron's names of what a packed batch says about its samples' borders.
BORDERS = {
    "cu_seq_lens": "cu_seqlens",
    "cu_seq_lens_padded": "cu_seqlens_padded",
    "max_length": "max_seqlen",
}


def megatron_batch(batch: Any, shift_labels: bool = True) -> Any:
    """Return a batch of layout "padded" or "packed" with Megatron-LM's names, shapes (B, L).

    tokens, labels (of the next token), loss_mask float32 (0 where there is no label, whose label is
    0), position_ids; cu_seqlens and max_seqlen where it is packed, cu_seqlens_padded
    where samples are aligned; and other fields as they are. shift_labels: as in Balance.
    Raises ValueError for one of them that has one of these names.

    >>> import torch
    >>> ids = torch.tensor([[5, 6, 7]])
    >>> made = megatron_batch({"input_ids": ids, "labels": torch.tensor([[-100, 6, 7]])})
    >>> made["tokens"].tolist(), made["labels"].tolist(), made["loss_mask"].tolist()
    ([[5, 6, 7]], [[6, 7, 0]], [[1.0, 1.0, 0.0]])
    """
    inputs, labels = next_token_batch(batch, shift_labels=shift_labels)
    has_label = labels != IGNORED
    converted = {
        "tokens": inputs.pop("input"),
        "labels": labels * has_label,
        "loss_mask": has_label.float(),
        "position_ids": inputs.pop("positions"),
        **{theirs: batch[ours] for ours, theirs in BORDERS.items() if ours in batch},
    }
    return {**converted, **unlike(converted, inputs)}


def megatron_iterators(
    loader: Any, virtual_stages: int = 1, convert: Callable[[Any], Any] = megatron_batch
) -> list["MegatronIterator"]:
    """Return one iterator for each virtual stage of this process; give the only one as it is.

    convert: what makes a batch of the loader what `forward_step` takes. Load a ledger into the
    loader before: `loader.load_state_dict(saved["dataloader_state_dict"])`. Counts of labels differ
    between microbatches: train with --calculate-per-token-loss.
    """
    if virtual_stages < 1:
        raise ValueError(f"virtual_stages is {virtual_stages}, allowed is a positive integer")
    # What one stage has taken, and others have not, waits in here.
    if convert is megatron_batch:
        convert = partial(megatron_batch, shift_labels=shifts_labels(loader))
    batches = tee(map(convert, repeat_epochs(loader)), virtual_stages)
    taken = [0] * virtual_stages
    return [
        MegatronIterator(loader, stage_batches, taken, n) for n, stage_batches in enumerate(batches)
    ]


class MegatronIterator:
    """The microbatches of one virtual stage, without end.

    taken: how many each stage has taken, shared by all.
    """

    def __init__(self, loader: Any, batches: Iterator[Any], taken: list[int], stage: int) -> None:
        self._loader, self._batches, self._taken, self._stage = loader, batches, taken, stage

    def __iter__(self) -> Iterator[Any]:
        """Return itself: there is one position."""
        return self

    def __next__(self) -> Any:
        """Return the next microbatch; the same object as other stages get."""
        batch = next(self._batches)
        self._taken[self._stage] += 1
        return batch

    def save_state(self) -> dict[str, Any]:
        """Return the ledger; ValueError inside a step, where virtual stages are not equally far."""
        waiting = [max(self._taken) - taken for taken in self._taken]
        if any(waiting):
            raise ValueError(
                f"save_state() inside a step: {waiting} microbatches wait for the virtual stages; "
                "save after optimizer.step()"
            )
        return self._loader.state_dict()  # type: ignore[no-any-return]
