"""What is held between passes, and that no pass makes all logits where none are kept."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from counterpoise.sched.runtime.vocabulary import output_passes as logits
from counterpoise.sched.runtime.vocabulary.shard import VocabParallel
from counterpoise.sched.runtime.vocabulary.step import VocabularyPart
from tests.sched.runtime.vocabulary.held import held_bytes
from tests.sched.runtime.vocabulary.one_process import begun, labelled
from tests.sched.runtime.vocabulary.shards import PASSES

SIZE, HIDDEN, TOKENS = 4096, 8, 64
ALGORITHMS = ("alg1", "alg2", "naive")


class LargestTensor(TorchDispatchMode):
    """Records the most elements that any operation's result has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        found = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor):
                self.elements = max(self.elements, leaf.untyped_storage().nbytes() // 4)
        return found


def a_step(algorithm: str, keep: str, dtype: torch.dtype = torch.float32) -> VocabularyPart:
    torch.manual_seed(0)
    parallel = VocabParallel(
        nn.Linear(HIDDEN, SIZE, dtype=dtype),
        algorithm=algorithm,  # type: ignore[arg-type]
        keep=keep,  # type: ignore[arg-type]
    )
    labels = torch.arange(TOKENS)
    return begun(parallel.shard(0, 1), parallel, [labelled(labels, 1 / TOKENS)] * 2)


def run(step: VocabularyPart, kinds: str, m: int, hidden: Tensor) -> None:
    received = hidden
    for kind in kinds:
        sent = step.run(kind, m, received)
        if kind in "SLE":
            assert sent is not None
            received = sent[None]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("keep", ["logits", "nothing"])
def test_nothing_is_held_once_a_microbatch_is_over(algorithm: str, keep: str) -> None:
    step = a_step(algorithm, keep)
    hidden = torch.randn(TOKENS, HIDDEN)
    run(step, PASSES[algorithm], 0, hidden)
    assert held_bytes(step) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keep_decides_whether_logits_are_held_in_the_models_precision(
    algorithm: str, dtype: torch.dtype
) -> None:
    held = {}
    for keep in ("logits", "nothing"):
        step = a_step(algorithm, keep, dtype)
        run(step, PASSES[algorithm][:-1], 0, torch.randn(TOKENS, HIDDEN).to(dtype))
        held[keep] = held_bytes(step)
    assert held["logits"] - held["nothing"] == TOKENS * SIZE * dtype.itemsize
    # Hidden states and a few numbers a token.
    assert held["nothing"] <= TOKENS * (HIDDEN * dtype.itemsize + 64)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_without_kept_logits_no_pass_makes_all_of_them(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = TOKENS * SIZE // 16
    monkeypatch.setattr(logits.token_pieces, "__defaults__", (piece,))
    monkeypatch.setattr(logits.column_pieces, "__defaults__", (piece,))
    most = {}
    for keep in ("logits", "nothing"):
        step = a_step(algorithm, keep)
        with LargestTensor() as largest:
            run(step, PASSES[algorithm], 0, torch.randn(TOKENS, HIDDEN))
        most[keep] = largest.elements
    assert most["logits"] >= TOKENS * SIZE
    assert most["nothing"] <= max(piece, SIZE * HIDDEN)


def test_a_frozen_head_keeps_no_logits_with_algorithm_2() -> None:
    step = a_step("alg2", "logits")
    step.shard.requires_grad_(False)
    run(step, "S", 0, torch.randn(TOKENS, HIDDEN))
    assert held_bytes(step) < TOKENS * SIZE * 4
