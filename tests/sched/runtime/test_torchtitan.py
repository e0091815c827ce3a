"""The adapter for torchtitan, by the calls that its trainer and its validator make."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from counterpoise.sched import schedule
from counterpoise.sched.runtime.torchtitan import TorchtitanSchedule
from tests.sched.runtime.cases import gradient, relative
from tests.sched.runtime.models import HIDDEN, WORDS, Block, copies
from tests.sched.runtime.pool import make_mesh

COUNT, BATCH, LENGTH = 8, 2, 5


class ModelPart(nn.Module):
    """A part of a model as torchtitan cuts it: what others have is None."""

    def __init__(self, first: bool, last: bool) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, HIDDEN) if first else None
        self.block = Block()
        self.lm_head = nn.Linear(HIDDEN, WORDS) if last else None

    def forward(self, tokens: Tensor, positions: Tensor, attention_masks: object = None) -> Tensor:
        assert attention_masks == "of no tensor's type"
        h = tokens if self.tok_embeddings is None else self.tok_embeddings(tokens)
        h = self.block(h + positions[..., None] / LENGTH)
        return h if self.lm_head is None else self.lm_head(h)


def sum_loss(output: Tensor, labels: Tensor, global_valid_tokens: Tensor | float = 1.0) -> Tensor:
    flat = F.cross_entropy(output.flatten(0, 1), labels.flatten(), reduction="sum")
    return flat / global_valid_tokens


def loss_and_metrics(*given: Any, **keywords: Any) -> tuple[Tensor, dict[str, Tensor]]:
    return sum_loss(*given, **keywords), {}


def make_parts(count: int) -> list[nn.Module]:
    torch.manual_seed(4)
    return [ModelPart(n == 0, n == count - 1) for n in range(count)]


def run_as_the_trainer_does(_rank: int, name: str, ranks: int) -> float:
    """Return the largest relative error of losses and gradients against one process."""
    mesh = make_mesh(ranks)
    program = schedule(name, ranks=ranks, microbatches=COUNT)
    whole = make_parts(program.stages)
    placed = program.stages_of(mesh["pp"].get_local_rank())
    parts = copies([whole[stage] for stage in placed])
    adapter = TorchtitanSchedule(
        mesh, schedule=name, stages=dict(zip(placed, parts, strict=True)),
        hidden=(BATCH, LENGTH, HIDDEN), loss=loss_and_metrics, deadline_s=40,
    )  # fmt: skip
    worst = 0.0
    try:
        for step in range(2):
            generator = torch.Generator().manual_seed(step)
            draw = (
                torch.randint(WORDS, (2, BATCH, LENGTH), generator=generator) for _ in range(COUNT)
            )
            batches = [(tokens, labels) for tokens, labels in draw]
            keywords = {"positions": torch.arange(LENGTH), "attention_masks": "of no tensor's type"}
            total = torch.tensor(float(COUNT * BATCH * LENGTH))
            arg_mbs = [(tokens,) for tokens, _ in batches] if adapter.has_first_stage else None
            target_mbs = [labels for _, labels in batches] if adapter.has_last_stage else None
            losses: list[Tensor] | None = [] if adapter.has_last_stage else None
            validated: list[Tensor] | None = [] if adapter.has_last_stage else None
            adapter.eval(
                arg_mbs=arg_mbs,
                kwarg_mbs=[keywords] * COUNT,
                target_mbs=target_mbs,
                losses=validated,
            )
            assert all(p.grad is None for part in parts for p in part.parameters())
            adapter.step(
                arg_mbs=arg_mbs,
                kwarg_mbs=[keywords] * COUNT,
                target_mbs=target_mbs,
                losses=losses,
                loss_kwargs={"global_valid_tokens": total},
                return_outputs=False,
            )
            expected = []
            for tokens, labels in batches:
                h = tokens
                for part in whole:
                    h = part(h, **keywords)
                loss = sum_loss(h, labels, total)
                loss.backward()
                expected.append(loss.detach())
            if losses is not None and validated is not None:
                assert len(losses) == len(validated) == COUNT
                worst = max(worst, relative(torch.stack(losses), torch.stack(expected)))
                worst = max(worst, relative(torch.stack(validated) / total, torch.stack(expected)))
            for stage, part in zip(placed, parts, strict=True):
                pairs = zip(part.parameters(), whole[stage].parameters(), strict=True)
                worst = max(worst, *(relative(gradient(a), gradient(b)) for a, b in pairs))
            for part in (*parts, *whole):
                part.zero_grad()
    finally:
        adapter.pipe.close()
    return worst


@pytest.mark.parametrize(("name", "ranks"), [("zb-h1", 4), ("v-half", 2)])
def test_a_trainer_gets_the_losses_and_gradients_of_one_process(pool, name, ranks) -> None:
    assert max(pool.run(run_as_the_trainer_does, name, ranks)) <= 1e-5


def refuse(_rank: int) -> list[str]:
    """Return the errors for calls that the adapter cannot run."""
    mesh = make_mesh(4)
    rank = mesh["pp"].get_local_rank()
    adapter = TorchtitanSchedule(
        mesh, schedule="1f1b", stages={rank: make_parts(4)[rank]},
        hidden=(BATCH, LENGTH, HIDDEN), loss=sum_loss,
    )  # fmt: skip
    found = []
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    calls: list[dict[str, Any]] = [
        {"kwarg_mbs": [{}], "return_outputs": True},
        {"kwarg_mbs": []},
        {"kwarg_mbs": [{}], "target_mbs": [tokens, tokens]},
        {"kwarg_mbs": [{}], "arg_mbs": [(tokens, tokens)]},
    ]
    try:
        for call in calls:
            with pytest.raises(ValueError, match=r"give|leave") as error:
                adapter.step(**call)
            found.append(str(error.value))
    finally:
        adapter.pipe.close()
    return found


def test_calls_that_cannot_be_run_are_refused(pool) -> None:
    (outputs, nothing, other, two), *_ = pool.run(refuse)
    assert "outputs are freed" in outputs
    assert "has 0 microbatches of 0" in nothing
    assert "has 1 microbatches of 2" in other
    assert "2 positional arguments" in two
