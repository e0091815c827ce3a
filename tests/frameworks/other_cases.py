"""What the tests of examples, torchtitan's and Megatron-LM's adapters run in a pool."""

import importlib.util
import io
import runpy
from contextlib import redirect_stdout
from typing import Any

import torch

import counterpoise as cp

from . import torchtitan_stand_in
from .loss_cases import loader
from .tiny import error_of


def example(path: str) -> str:
    """What an example prints."""
    torchtitan_stand_in.install()
    printed = io.StringIO()
    with redirect_stdout(printed):
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()


def packed_loader(ranks: tuple[int, int], **_: Any) -> Any:
    """Return the loader that the overridden config makes."""
    assert ranks == (0, 1)
    return loader(3, ranks=1, layout="packed")


def overridden() -> Any:
    """(dataset of the config, errors, shapes and labels of two batches) as torchtitan gets them."""
    torchtitan_stand_in.install()
    from counterpoise.loader.adapters import torchtitan

    module: Any = torchtitan
    theirs = module.BaseDataLoader.Config(dataset="c4")
    named = {"loader": f"{__name__}:packed_loader"}
    config = torchtitan.dataloader(theirs, **named)
    given: dict[str, Any] = {"dp_rank": 0, "dp_world_size": 1, "tokenizer": None, "seq_len": 9}
    made = config.build(**given)
    ours = list(packed_loader((0, 1)))

    def error_with(name: str) -> str:
        return error_of(lambda: torchtitan.dataloader(theirs, name).build(**given))

    errors = [error_with("data"), error_with("counterpoise:nothing")]
    batches = [batch for batch, _ in zip(made, range(len(ours) + 1), strict=False)]
    return config.dataset, errors, [batch_facts(*each) for each in zip(batches, ours, strict=False)]


def batch_facts(theirs: Any, ours: Any) -> tuple[Any, ...]:
    """(are tokens ours, do positions restart, label tokens, each label its next token's)."""
    inputs, labels = theirs
    ids = inputs["input"]
    is_label = labels != -100
    return (
        torch.equal(ids, ours["input_ids"]),
        torch.equal(inputs["positions"], ours["position_ids"]),
        int(is_label.sum()) == int(ours["labels"][:, 1:].ne(-100).sum()),
        torch.equal(labels[is_label], ids.roll(-1, 1)[is_label]),
    )


def through_megatron(stages: int) -> Any:
    """(tokens that each stage of a step sees, of epochs; the rest after a state; errors)."""
    rerun = real_rerun_iterator()
    made = cp.adapters.megatron_iterators(loader(3, ranks=1, layout="packed"), stages)
    wrapped = [rerun(each) for each in made]
    seen: list[list[Any]] = [[] for _ in wrapped]

    def step() -> None:
        for microbatch in range(3):
            for each, found in zip(wrapped, seen, strict=True):
                found.append(next(each)["tokens"][0].tolist())
                if microbatch == 1 and each is wrapped[0] and stages > 1:
                    errors.append(error_of(made[0].save_state))

    errors: list[str] = []
    for number in range(6):  # an epoch has 4
        step()
        if number == 2:
            state = made[0].save_state()
    again = loader(3, ranks=1, layout="packed")
    again.load_state_dict(state)
    (resumed,) = cp.adapters.megatron_iterators(again)
    rest = [next(resumed)["tokens"][0].tolist() for _ in range(9)]
    errors.append(error_of(lambda: cp.adapters.megatron_iterators(again, 0)))
    return seen, rest, errors


def real_rerun_iterator() -> Any:
    """Return megatron-core's RerunDataIterator, where it is installed; else what it does here."""
    if importlib.util.find_spec("megatron") is None:
        return iter
    from megatron.core.rerun_state_machine import (
        RerunDataIterator,
        RerunMode,
        destroy_rerun_state_machine,
        initialize_rerun_state_machine,
    )

    destroy_rerun_state_machine()  # of a case before, in this process
    initialize_rerun_state_machine(mode=RerunMode.DISABLED)
    return RerunDataIterator
