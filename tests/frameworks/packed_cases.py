"""What the tests of packed batches under Trainer run in one process."""

import logging
from itertools import pairwise
from typing import Any

import torch
from accelerate import Accelerator
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

import counterpoise as cp
from counterpoise.loader.adapters.trainer import for_model
from tests.loader.models.families import build, samples_of

from .loss_cases import Arrays
from .tiny import KEPT, VOCABULARY, balanced, error_of, plain
from .trainer_cases import model, trainer, weights

Batch = dict[str, torch.Tensor]


def first_batch() -> Any:
    return cp.loader.collate_packed([Arrays()[n] for n in (0, 1)])


def arguments() -> list[str]:
    """The arguments that a model is given for a packed batch."""
    return sorted(for_model(first_batch(), model()))


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


def trained_with_images(folder: str) -> Any:
    """The same of a Qwen2-VL, of four samples a step, with up to two images in each."""
    alone = build("qwen2_vl").double().train()
    samples = samples_of(alone.config, torch.float64)
    loader = cp.DataLoader(
        samples * 4, balance=cp.Balance("fixed", layout="packed"), batch_size=4, shuffle=False
    )
    KEPT.append(loader)
    made = trainer(folder, max_steps=4, model=build("qwen2_vl").double())
    cp.adapters.attach_trainer(made, loader).train()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    tokens = sum(int((sample["labels"] != -100).sum()) for sample in samples)
    for _ in range(4):
        for sample in samples:
            named = {n: v[None] for n, v in sample.items() if n in ("input_ids", "labels")}
            types = (named["input_ids"] == alone.config.image_token_id).long()
            mask = torch.ones_like(types)
            alone(
                **{**sample, **named}, mm_token_type_ids=types, attention_mask=mask,
                num_items_in_batch=tokens,
            ).loss.backward()  # fmt: skip
        optimizer.step()
        optimizer.zero_grad()
    return weights(made), [each.detach().numpy() for each in alone.parameters()], made.names


def leaking(kind: str) -> Any:
    """A model that mixes packed samples: one that is made to, and two that do so by design."""
    if kind == "made to":

        class Leaking(LlamaForCausalLM):
            def forward(self, input_ids: Any, labels: Any = None, **_: Any) -> Any:
                return super().forward(input_ids, labels=labels, use_cache=False)

        return Leaking(model().config)
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 16}
    if kind == "bloom":  # its mask knows no positions
        return BloomForCausalLM(BloomConfig(n_layer=1, n_head=2, **sizes))
    return MambaForCausalLM(MambaConfig(num_hidden_layers=1, state_size=4, **sizes))


def under_trainer(folder: str, kind: str) -> list[str]:
    """What attach_trainer says of a model that leaks.

    At once where the loader packs, balanced or not; at the first packed batch of any other
    collate_fn, whose training changes no weight; of the packed batches of an evaluation; and of
    batches that are not packed.
    """
    attach = cp.adapters.attach_trainer

    def wrong() -> Any:
        return trainer(folder, max_steps=1, model=leaking(kind))

    late = wrong()
    attach(late, packing("unknown"))
    before = weights(late)
    errors = [
        error_of(lambda: attach(wrong(), packing("balanced"))),
        error_of(lambda: attach(wrong(), packing("plain"))),
        error_of(late.train),
        error_of(lambda: attach(trainer(folder), balanced(), packing("plain"))),
        error_of(lambda: attach(wrong(), plain())),
    ]
    assert all((one == other).all() for one, other in zip(before, weights(late), strict=True))
    return errors


def under_accelerate(kind: str) -> list[str]:
    """What prepare_accelerate says of it: prepared before a loader, and after; without a model."""
    prepare, errors = cp.adapters.prepare_accelerate, []
    for loader in ("balanced", "plain"):
        accelerator = Accelerator(cpu=True)
        accelerator.prepare(leaking(kind))
        errors.append(error_of(lambda a=accelerator, k=loader: prepare(a, packing(k))))  # type: ignore[misc]
    accelerator = Accelerator(cpu=True)
    late = prepare(accelerator, packing("balanced"))
    accelerator.prepare(leaking(kind))
    errors.append(error_of(lambda: next(iter(late))))
    # packed by a collate_fn that nobody knows
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(leaking(kind))
    own = cp.DataLoader(
        Arrays(32), balance="fixed", batch_size=8, shuffle=False, collate_fn=lambda _: first_batch()
    )
    KEPT.append(own)
    errors.append(error_of(lambda: next(iter(prepare(accelerator, own)))))
    right = Accelerator(cpu=True)
    right.prepare(model())
    errors.append(error_of(lambda: next(iter(prepare(right, packing("balanced"))))))
    return errors


def without_a_model() -> list[list[str]]:
    """What is logged where an accelerator has prepared no model, of each loader."""
    found: list[list[str]] = []
    handler = logging.Handler()
    logging.getLogger("counterpoise.loader.adapters.accelerate").addHandler(handler)
    for kind in ("balanced", "plain"):
        found.append([])
        handler.emit = lambda record: found[-1].append(record.getMessage())  # type: ignore[method-assign]
        next(iter(cp.adapters.prepare_accelerate(Accelerator(cpu=True), packing(kind))))
    logging.getLogger("counterpoise.loader.adapters.accelerate").removeHandler(handler)
    return found


def checked(kind: str) -> tuple[bool, str, tuple[str, ...]]:
    """What check_equivalence finds of it."""
    try:
        found = cp.check_equivalence(leaking(kind), packing("balanced"))
    except ValueError as error:  # older ones know no cu_seq_lens_q, and raise
        return False, "refused", (str(error),)
    return found.ok, found.packing, found.causes
