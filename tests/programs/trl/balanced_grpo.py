"""What a user of TRL's GRPOTrainer writes: rollouts dealt anew within each optimizer step.

TRL cuts the rollouts of each process into the batches of accumulation, and ranks exchange none.
"""

import math

import torch
import torch.distributed as dist
from trl import GRPOTrainer

import counterpoise as cp


class BalancedGRPOTrainer(GRPOTrainer):
    """Evens out the tokens of ranks in an optimizer step; rows of a batch have like lengths."""

    def _prepare_inputs(self, generation_batch):
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training or self._buffered_inputs is before:
            return inputs
        batches = self._buffered_inputs
        # Batches that are in one optimizer step, wherever a step begins.
        size = math.gcd(len(batches), self.args.gradient_accumulation_steps)
        for begin in range(0, len(batches), size):
            batches[begin : begin + size] = deal_batches(
                batches[begin : begin + size], self.processing_class.pad_token_id
            )
        return batches[self._step % len(batches)]


def deal_batches(batches, pad_id):
    """Return as many batches of as many rollouts, which all ranks have exchanged."""
    names = [name for name, value in batches[0].items() if torch.is_tensor(value) and value.ndim]
    rows = {name: torch.cat([batch[name] for batch in batches]) for name in names}
    rows = pad_alike(rows, pad_id)
    deal = cp.partition_across(count_tokens(rows))
    rows = {name: deal.swap(values) for name, values in rows.items()}
    # Rows of like lengths are padded least.
    cells = count_tokens(rows).argsort(stable=True).chunk(len(batches))
    return [
        batch | trim_padding({name: values[cell] for name, values in rows.items()})
        for batch, cell in zip(batches, cells, strict=True)
    ]


def count_tokens(rows):
    return rows["prompt_mask"].sum(1) + rows["completion_mask"].sum(1)


def pad_alike(rows, pad_id):
    """Return rows as wide as the widest of all ranks: prompts are padded left, others right."""
    widths = [rows[f"{part}_ids"].shape[1] for part in ("prompt", "completion")]
    widest = torch.tensor(widths, device=rows["prompt_ids"].device)
    dist.all_reduce(widest, dist.ReduceOp.MAX)
    prompt, completion = widest.tolist()
    padded = dict(rows)
    for name, values in rows.items():
        if values.ndim == 2:
            left = name.startswith("prompt")
            more = (prompt if left else completion) - values.shape[1]
            fill = pad_id if name.endswith("_ids") else 0
            padded[name] = torch.nn.functional.pad(
                values, (more, 0) if left else (0, more), value=fill
            )
    return padded


def trim_padding(rows):
    """Return rows without the columns in which all are padded."""
    trimmed = dict(rows)
    for name, values in rows.items():
        if values.ndim == 2:
            part = "prompt" if name.startswith("prompt") else "completion"
            width = rows[f"{part}_mask"].sum(1).max()
            trimmed[name] = values[:, -width:] if part == "prompt" else values[:, :width]
    return trimmed
