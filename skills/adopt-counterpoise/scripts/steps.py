"""Compares the optimizer steps of a training script before and after a change.

Put this file beside the script, and two lines into the script, after the model is made and before
anything wraps it:

    import steps
    steps.watch(model)

Run the script as it was and as it is, on the same ranks, then compare:

    STEPS=before torchrun --standalone --nproc-per-node 2 train.py
    STEPS=after torchrun --standalone --nproc-per-node 2 train.py
    python steps.py before after

Without STEPS in the environment `watch` does nothing.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def watch(model: Any, measure: Callable[..., tuple[int, int, int]] | None = None) -> None:
    """Write a line for each optimizer step of this rank into the folder that STEPS names.

    measure: given what the model is called with, returns the samples of a microbatch, its real
    elements, and all elements, padding included. Default: by its attention_mask (B, L), or by
    the position_ids (1, L) of a packed one, with M-RoPE (4, 1, L).
    """
    if not (folder := os.environ.get("STEPS")):
        return
    from torch import distributed
    from torch.optim.optimizer import register_optimizer_step_post_hook

    Path(folder).mkdir(exist_ok=True)
    files: list[Path] = []
    microbatches: list[tuple[int, int, int]] = []

    def forward(module: Any, args: Any, kwargs: Any) -> None:
        if module is model and module.training:  # a copy is looked at before training
            counted = (measure or by_mask)(*args, **kwargs)
            microbatches.append(tuple(map(int, counted)))  # type: ignore[arg-type]

    def step(optimizer: Any, *_: Any) -> None:
        # Fabric and Lightning start their ranks later than this is called: now each has its number
        rank, ranks = (int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
        if distributed.is_available() and distributed.is_initialized():
            rank, ranks = distributed.get_rank(), distributed.get_world_size()
        if not files:
            files.append(Path(folder, f"rank-{rank}.jsonl"))
            files[0].write_text("")
        samples, real, elements = map(sum, zip(*microbatches, strict=True))
        # of a sharded gradient, this rank's part
        parts = (getattr(grad, "to_local", lambda grad=grad: grad)() for grad in _grads(optimizer))
        square = sum(float(part.double().square().sum()) for part in parts)
        line = {"samples": samples, "real": real, "elements": elements, "square": square}
        line |= {"microbatches": len(microbatches), "ranks": ranks}
        with files[0].open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        microbatches.clear()

    model.register_forward_pre_hook(forward, with_kwargs=True)
    register_optimizer_step_post_hook(step)


def _grads(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from (each.grad for each in group["params"] if each.grad is not None)


def by_mask(*args: Any, **kwargs: Any) -> tuple[int, int, int]:
    """Return samples, real elements and all elements, by attention_mask or packed position_ids."""
    for given in (kwargs, *args):
        if isinstance(given, dict) and given.get("attention_mask") is not None:
            mask = given["attention_mask"]
            return int(mask.any(1).sum()), int(mask.sum()), mask.numel()
        if isinstance(given, dict) and given.get("position_ids") is not None:
            places = given["position_ids"].flatten(0, -2)[0]
            return int((places == 0).sum()), places.numel(), places.numel()
    raise ValueError(
        "the model is called without attention_mask or position_ids: give watch(model, measure), "
        "where measure(*args, **kwargs) returns samples, real elements and all elements"
    )


def read(folder: str) -> list[list[dict[str, float]]]:
    """Return a list for each step, with what each rank had in it."""
    files = sorted(Path(folder).glob("rank-*.jsonl"))
    if not files:
        raise SystemExit(
            f"{folder} has no rank-*.jsonl: run the script with STEPS={folder}, for a step or more"
        )
    ranks = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    if any(not rank or rank[0]["ranks"] != len(files) for rank in ranks):
        raise SystemExit(
            f"{folder} has {len(files)} rank-*.jsonl, another number than ranks made steps: "
            "remove it, run the script again, and see what it says"
        )
    return [list(step) for step in zip(*ranks, strict=False)]


def total(step: list[dict[str, float]], name: str) -> float:
    """Return the sum over the ranks."""
    return sum(rank[name] for rank in step)


def longest(run: list[list[dict[str, float]]]) -> float:
    """Return the elements of the slowest rank of each step, added up: what the steps take."""
    return sum(max(rank["elements"] for rank in step) for step in run)


def compare(before: str, after: str) -> bool:
    """Print both runs; return True if the steps have as many samples.

    What the gradient should be is not judged: of a mean over tokens the one before was that of
    another weighting, and how far off depends on the data. Wrong divisions are named beside it.
    """
    old, new = read(before), read(after)
    count = min(len(old), len(new))
    old, new = old[:count], new[:count]
    norms = [total(run[0], "square") ** 0.5 for run in (old, new)]
    for name, run, norm in zip((before, after), (old, new), norms, strict=True):
        elements = sum(total(step, "elements") for step in run)
        padding = 1 - sum(total(step, "real") for step in run) / elements
        print(
            f"{name}: {count} steps, {sum(total(step, 'samples') for step in run):,} samples, "
            f"padding {padding:.1%}, waiting {1 - elements / len(run[0]) / longest(run):.1%}, "
            f"first gradient {norm:.6g}"
        )
    pairs = list(zip(old, new, strict=True))
    counts, same = (
        sum(total(a, name) == total(b, name) for a, b in pairs) for name in ("samples", "real")
    )
    ratio = norms[1] / norms[0]
    print(f"time of the steps by elements, after / before: {longest(new) / longest(old):.2f}")
    print(f"steps with as many samples: {counts} of {count}")
    print(f"steps with the same real elements: {same} of {count}")
    held, ranks = round(new[0][0]["microbatches"]), len(new[0])
    wrong = sorted(
        {each for many in (held, ranks, held * ranks) for each in (many, 1 / many)} - {1}
    )
    print(
        f"first gradient, after / before: {ratio:.4f}"
        f" (of a loss divided wrongly near {', '.join(f'{each:.3g}' for each in wrong)})"
    )
    is_good = counts >= count - 1  # the last step of an epoch may hold fewer samples
    print("the same steps" if is_good else "NOT the same steps")
    return is_good


if __name__ == "__main__":
    sys.exit(not compare(*sys.argv[1:3]))
