"""Recompute as few layers as memory allows: measure, plan, apply with torch.utils.checkpoint.

A small vision-language model in three pipeline stages; in 1F1B the first holds the activations of
three microbatches, the last of one. Bytes are those that autograd saves; on a GPU use
torch.cuda.max_memory_allocated() instead.

Run: python examples/recompute.py
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from counterpoise.sched.planners.recompute import (
    Stage,
    Trial,
    all_or_nothing,
    plan_recompute,
    savings,
    tighten,
)

LIMIT_BYTES = 8_000_000
KINDS = (("vision",) * 5, ("vision", "projector", "language"), ("language",) * 4)
LIVE = (3, 2, 1)
TOKENS, VISION, LANGUAGE = 256, 64, 96


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.mixed, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then an MLP."""
        q, k, v = (part.unsqueeze(0) for part in self.mixed(self.first(x)).chunk(3, dim=-1))
        x = x + self.output(nn.functional.scaled_dot_product_attention(q, k, v)[0])
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def run_layers(layers: Sequence[nn.Module], x: Tensor, recompute: Iterable[int]) -> Tensor:
    """Run a stage's layers, those at the positions of `recompute` checkpointed."""
    for at, layer in enumerate(layers):
        x = checkpoint(layer, x, use_reentrant=False) if at in recompute else layer(x)
    return x


def live_bytes(
    layers: Sequence[nn.Module], inputs: Sequence[Tensor], recompute: Sequence[int]
) -> int:
    """Return the bytes that a stage has saved after the forwards of its live microbatches."""
    own = {p.untyped_storage().data_ptr() for layer in layers for p in layer.parameters()}
    found: dict[int, int] = {}  # each storage once, parameters not counted

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        kept = [run_layers(layers, x, recompute) for x in inputs]
    total = sum(found.values())
    del kept  # not sooner: what is freed may be used again, and would be counted once
    return total


def main() -> None:
    """Measure two runs, plan, try the plan, and train with it."""
    torch.manual_seed(0)
    make = {
        "vision": lambda: Block(VISION),
        "projector": lambda: nn.Linear(VISION, LANGUAGE),
        "language": lambda: Block(LANGUAGE),
    }
    model = [[make[kind]() for kind in kinds] for kinds in KINDS]
    inputs = [
        [torch.randn(TOKENS, width, requires_grad=True) for _ in range(live)]
        for width, live in zip((VISION, VISION, LANGUAGE), LIVE, strict=True)
    ]

    def used(at: int, recompute: tuple[int, ...]) -> int:
        return live_bytes(model[at], inputs[at], recompute)

    # Step 1: everything is recomputed.
    every = [tuple(range(len(kinds))) for kinds in KINDS]
    stages = [Stage(KINDS[at], LIVE[at], used(at, every[at])) for at in range(len(KINDS))]
    # Step 2: some layers are kept. Step 3: what does one of each kind save?
    trials = [
        Trial(0, {"vision": 1}, used(0, (1, 2, 3, 4))),
        Trial(1, {"vision": 1, "projector": 1}, used(1, (2,))),
        Trial(2, {"language": 2}, used(2, (2, 3))),
    ]
    # Times in any unit: a projector is cheap to run once more.
    saving = savings(stages, trials, {"vision": 10, "projector": 1, "language": 20})
    # Step 4: plan, try, and keep fewer layers where that was too much.
    plan = plan_recompute(stages, saving, LIMIT_BYTES)
    print(f"limit {LIMIT_BYTES:,} bytes a stage")
    for at, (stage, first) in enumerate(zip(stages, plan, strict=True)):
        policy = tighten(stage, saving, first, used(at, first.recompute), LIMIT_BYTES)
        measured = used(at, policy.recompute)
        usual = all_or_nothing(stage, saving, LIMIT_BYTES)
        print(
            f"stage {at}: recomputes layers {list(policy.recompute)} of {len(stage.layers)} (all or"
            f" nothing: {len(usual.recompute)}), predicted {policy.predicted_bytes:,} bytes,"
            f" measured {measured:,}"
        )
        if measured > LIMIT_BYTES:
            raise SystemExit(f"stage {at} is over its limit")
        # Gradients are the same.
        x = inputs[at][0]
        kept, again = (
            torch.autograd.grad(run_layers(model[at], x, chosen).square().mean(), x)[0]
            for chosen in ((), policy.recompute)
        )
        torch.testing.assert_close(kept, again)


if __name__ == "__main__":
    main()
