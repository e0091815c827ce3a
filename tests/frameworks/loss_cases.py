"""What the tests of losses run in each process of a pool: transformers' Llama, and Lightning."""

from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import counterpoise as cp

from .lightning_cases import Module, trainer
from .tiny import KEPT, VOCABULARY, Texts, collate, cost as tiny_cost, numbers_of


class Arrays(Texts):
    """The same samples as numpy arrays, with labels."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = super().__getitem__(index)["input_ids"].numpy()
        return {"input_ids": ids, "labels": ids}


def cost(sample: dict[str, Any]) -> dict[str, int]:
    """Return tokens, and label tokens: none precedes the first."""
    tokens = len(sample["input_ids"])
    return {"tokens": tokens, "label_tokens": tokens - 1}


def loader(accumulate: Any = 3, ranks: int | None = None, **options: Any) -> Any:
    """Return a balanced loader of steps of 24 samples, with label tokens."""
    given: dict[str, Any] = {"budgets": {"tokens": 120 if accumulate == "auto" else 400}, **options}
    made = cp.DataLoader(
        Arrays() if "layout" in options else Texts(), cost=cost, shuffle=True,
        ranks=cp.Ranks(virtual=ranks),
        balance=cp.Balance(samples_per_step=24, accumulate=accumulate, seed=5, **given),
        collate_fn=None if "layout" in options else collate,
    )  # fmt: skip
    KEPT.append(made)
    return made


def counted_in_batches(named: bool) -> list[tuple[int, ...]]:
    """(step, own label tokens, those of this rank, of all) of each batch that collate made."""
    given: dict[str, Any] = {"cost": {"tokens": Texts().lengths}} if named else {"cost": tiny_cost}
    balance = cp.Balance(
        budgets={"tokens": 400}, samples_per_step=24, accumulate=3,
        label_tokens="batch" if named else None,
    )  # fmt: skip
    made = cp.DataLoader(
        Texts(), balance=balance, collate_fn=collate, shuffle=True, num_workers=1, **given
    )
    KEPT.append(made)
    return [
        (info.step, int(batch["labels"][:, 1:].ne(-100).sum()), info.label_tokens,
         info.rank_label_tokens, info.step_label_tokens)
        for batch, info in made.with_info()
    ]  # fmt: skip


def llama(attention: str) -> LlamaForCausalLM:
    """Return two layers in training mode, as a configuration makes them."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=256, attn_implementation=attention,
    )  # fmt: skip
    return LlamaForCausalLM(config).train()


def checked(knows_borders: bool) -> tuple[bool, tuple[str, ...]]:
    """What check_equivalence finds of a Llama, told of borders as it should be, or not."""

    def without_cache_off(model: Any, batch: Any) -> torch.Tensor:
        told = {name: batch[name] for name in ("position_ids", "attention_mask") if name in batch}
        logits = model(input_ids=batch["input_ids"], **told).logits[:, :-1].flatten(0, 1)
        targets = batch["labels"][:, 1:].flatten()
        return torch.nn.functional.cross_entropy(logits, targets, reduction="sum")

    named: dict[str, Any] = {} if knows_borders else {"loss": without_cache_off}
    given = loader("auto", ranks=1, layout="packed")
    found = cp.check_equivalence(llama("sdpa"), given, **named)
    return found.ok, found.causes


class Scaled(Module):
    """Trains on pairs, with the loss that the rule hands to Lightning; notes whose info came."""

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule = rule
        self.matching: list[bool] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        inputs, info = batch
        self.matching.append(list(map(int, info.keys)) == numbers_of(inputs))
        return self.rule.scale(self.model.loss_sum(inputs), info)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning_ahead() -> list[bool]:
    """Does each info belong to its batch where Lightning, not knowing a length, fetches ahead."""
    module = Scaled(cp.loader.loss_rule("ddp"))
    module.automatic_optimization = False  # nothing is trained: steps differ in microbatches
    trainer(max_epochs=1).fit(module, loader("auto", ranks=1).with_info())
    return module.matching


class InSteps(Module):
    """Trains on whole steps, by manual optimization; notes their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.numbers: list[int] = []

    def training_step(self, batch: Any, _: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        for inputs, info in zip(batch.microbatches, batch.infos, strict=True):
            self.manual_backward(cp.scale_loss(self.model.loss_sum(inputs), info))
        optimizer.step()
        optimizer.zero_grad()
        self.numbers.append(batch.number)
        self.seen.append(sorted(n for inputs in batch.microbatches for n in numbers_of(inputs)))


def lightning_resumed(folder: str, at: int) -> tuple[Any, ...]:
    """(uninterrupted, up to a checkpoint, after it): steps with their samples; and the weights."""

    def fit(module: Any, steps: int, checkpoint: str | None = None) -> Any:
        made = trainer(max_steps=steps)
        made.fit(module, cp.loader.StepLoader(loader("auto", ranks=1)), ckpt_path=checkpoint)
        return made

    whole, first, second = InSteps(), InSteps(), InSteps()
    fit(whole, 4)
    fit(first, at).save_checkpoint(f"{folder}/steps.ckpt")
    fit(second, 4, f"{folder}/steps.ckpt")
    found = [list(zip(each.numbers, each.seen, strict=True)) for each in (whole, first, second)]
    return found, weights(whole.model), weights(second.model)


def weights(model: torch.nn.Module) -> list[np.ndarray]:
    return [each.detach().numpy().copy() for each in model.parameters()]
