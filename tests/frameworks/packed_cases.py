"""What the tests of packed batches under Trainer run in one process."""

from itertools import pairwise
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM

import counterpoise as cp
from counterpoise.loader.adapters.trainer import check_keeps_apart, for_model

from .loss_cases import Arrays
from .tiny import KEPT, balanced, error_of, plain
from .trainer_cases import model, trainer, weights

Batch = dict[str, torch.Tensor]


def first_batch() -> Any:
    return cp.loader.collate_packed([Arrays()[n] for n in (0, 1)])


def arguments() -> list[str]:
    """The arguments that a model is given for a packed batch."""
    return sorted(for_model(first_batch()))


def packing(kind: str) -> Any:
    """Return a loader of packed batches in the data's order; its collate_fn may be another's."""
    if kind == "balanced":
        balance = cp.Balance("fixed", layout="packed")
        loader = cp.DataLoader(Arrays(32), balance=balance, batch_size=8, shuffle=False)
        KEPT.append(loader)
        return loader
    collate = cp.loader.collate_packed if kind == "plain" else lambda _: first_batch()
    return cp.DataLoader(Arrays(32), batch_size=8, collate_fn=collate)


def trained(folder: str, kind: str) -> Any:
    """(weights after four packed steps under Trainer, and of one by one; the model's arguments)."""
    made = trainer(folder, max_steps=4)
    cp.adapters.attach_trainer(made, packing(kind)).train()
    alone = model().train()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for batch in packing(kind):
        ends = batch["cu_seq_lens"].tolist()
        tokens = ends[-1] - (len(ends) - 1)
        for begin, end in pairwise(ends):
            ids = batch["input_ids"][:, begin:end]
            alone(input_ids=ids, labels=ids, num_items_in_batch=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(made), [each.detach().numpy() for each in alone.parameters()], made.names


class NoPositions(torch.nn.Module):
    def forward(self, input_ids: Any, labels: Any, **more: Any) -> None: ...


class NoCacheArgument(torch.nn.Module):
    config = type("Config", (), {"use_cache": True})

    def forward(self, input_ids: Any, position_ids: Any, **more: Any) -> None: ...


class NoMore(torch.nn.Module):
    def forward(self, input_ids: Any, position_ids: Any, use_cache: Any) -> None: ...


def llama_with(attention: str) -> Any:
    made = model()
    made.config._attn_implementation = attention
    return made


class TakesAll(BertForMaskedLM):
    """Not causal; its forward takes whatever there is, as only newer ones do by themselves."""

    def forward(self, input_ids: Any, position_ids: Any = None, **more: Any) -> None: ...


def bert(attention: str) -> Any:
    config = BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=8, use_cache=False,
    )  # fmt: skip
    config._attn_implementation = attention
    return TakesAll(config)


def refusals() -> dict[str, str]:
    """What each model is told."""
    models = {
        "no positions": NoPositions(), "no cache": NoCacheArgument(), "no more": NoMore(),
        "unknown attention": llama_with("mine"), "not causal": bert("eager"),
        "eager": llama_with("eager"), "sdpa": llama_with("sdpa"),
        "flash": llama_with("flash_attention_2"), "flex": llama_with("flex_attention"),
    }  # fmt: skip
    return {name: error_of(lambda each=each: check_keeps_apart(each))  # type: ignore[misc]
            for name, each in models.items()}  # fmt: skip


def told(folder: str) -> list[str]:
    """What attach_trainer says: at once, of a packed evaluation, and at the first packed batch."""
    attach = cp.adapters.attach_trainer

    def wrong() -> Any:
        made = trainer(folder, max_steps=1)
        made.model.config._attn_implementation = "mine"
        return made

    late = wrong()
    attach(late, packing("unknown"))
    return [
        error_of(lambda: attach(wrong(), packing("balanced"))),
        error_of(lambda: attach(wrong(), packing("plain"))),
        error_of(lambda: attach(trainer(folder), balanced(), packing("plain"))),
        error_of(late.train),
        error_of(lambda: attach(wrong(), plain())),
    ]
