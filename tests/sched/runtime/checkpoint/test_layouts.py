"""What is saved on one layout is what any other layout, and one process, would have saved."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counterpoise.sched.runtime.model_state import (
    HeldModules,
    RankState,
    join_states,
    load_model,
    load_optimizer,
    own_state,
)
from counterpoise.sched.runtime.vocabulary.shard import VocabParallel, VocabularyShard

HIDDEN, WORDS, LAYERS = 4, 13, 4
Optimize = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimize] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
}


class Model(nn.Module):
    """Layers between vocabulary layers, tied or not."""

    def __init__(self, seed: int, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS))
        self.lm_head = nn.Linear(HIDDEN, WORDS, bias=not tied)
        if tied:
            self.lm_head.weight = self.embedding.weight


class Part(nn.Module):
    """Some layers, under the whole model's names."""

    def __init__(self, model: Model, numbers: range) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(n): copy.deepcopy(model.layers[n]) for n in numbers})


class Rank:
    """One rank's share of a model, and an optimizer for it."""

    def __init__(self, model: Model, rank: int, ranks: int, optimize: Optimize) -> None:
        each = LAYERS // ranks
        self.stages = {rank: Part(model, range(rank * each, (rank + 1) * each))}
        self.shard = VocabParallel(model.lm_head, model.embedding).shard(rank, ranks)
        self.held = HeldModules(self.stages, self.shard)
        self.optimizer = optimize([*self.stages[rank].parameters(), *self.shard.parameters()])

    def step(self, gradients: dict[str, Tensor]) -> None:
        for stage in self.stages.values():
            for name, parameter in stage.named_parameters():
                parameter.grad = gradients[name].clone()
        for name, parameter, sharding in self.shard.named_rows():
            parameter.grad = sharding.take(gradients[name])
        self.optimizer.step()

    def state(self) -> RankState:
        return own_state(self.held, self.optimizer)

    def load(self, state: RankState) -> None:
        load_model(self.held, state.model)
        load_optimizer(self.held, self.optimizer, state)


def make_ranks(seed: int, ranks: int, tied: bool, optimize: Optimize) -> list[Rank]:
    model = Model(seed, tied)
    return [Rank(model, rank, ranks, optimize) for rank in range(ranks)]


def draw_gradients(seed: int, tied: bool) -> dict[str, Tensor]:
    torch.manual_seed(100 + seed)
    names = Model(0, tied).state_dict()
    found = {name: torch.randn(value.shape) for name, value in names.items()}
    if tied:
        found["lm_head.weight"] = found["embedding.weight"]
    return found


def step_plain(model: Model, optimizer: torch.optim.Optimizer, gradients) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].clone()
    optimizer.step()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize(("saved", "loaded"), [(4, 2), (2, 4), (4, 1), (1, 4)])
def test_training_goes_on_as_in_one_process_on_another_number_of_ranks(
    saved: int, loaded: int, optimizer: str, tied: bool
) -> None:
    optimize = OPTIMIZERS[optimizer]
    plain = Model(0, tied)
    reference = optimize(list(plain.parameters()))
    before = make_ranks(0, saved, tied, optimize)
    for seed in range(2):
        gradients = draw_gradients(seed, tied)
        step_plain(plain, reference, gradients)
        for rank in before:
            rank.step(gradients)

    # In any order: parts say which rows they are.
    whole = join_states([rank.state() for rank in reversed(before)])
    after = make_ranks(1, loaded, tied, optimize)
    for rank in after:
        rank.load(whole)
        for _, parameter, sharding in rank.shard.named_rows():
            assert not parameter[sharding.real :].any()
    gradients = draw_gradients(2, tied)
    step_plain(plain, reference, gradients)
    for rank in after:
        rank.step(gradients)

    found = join_states([rank.state() for rank in after]).model
    assert set(found) == set(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(found[name], value), name


def test_learning_rates_and_groups_are_kept() -> None:
    def optimize(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        one = [p for p in parameters if p.dim() == 1]
        two = [p for p in parameters if p.dim() == 2]
        groups: list[dict[str, Any]] = [{"params": one, "weight_decay": 0.0}, {"params": two}]
        return torch.optim.AdamW(groups, lr=0.1)

    before = make_ranks(0, 4, True, optimize)
    for rank in before:
        rank.step(draw_gradients(0, True))
        for group in rank.optimizer.param_groups:
            group["lr"] = 0.01
    whole = join_states([rank.state() for rank in before])
    (after,) = make_ranks(1, 1, True, optimize)
    after.load(whole)
    found = [(g["lr"], g["weight_decay"]) for g in after.optimizer.param_groups]
    assert found == [(0.01, 0.0), (0.01, 0.01)]

    (mixed,) = make_ranks(1, 1, True, OPTIMIZERS["adamw"])
    with pytest.raises(ValueError, match=r"group in groups \[0, 1\]; divide parameters into"):
        mixed.load(whole)


def states(ranks: int = 2) -> list[RankState]:
    return [rank.state() for rank in make_ranks(0, ranks, False, OPTIMIZERS["adamw"])]


def change(state: RankState, **values: Any) -> RankState:
    fields = {name: getattr(state, name) for name in RankState.__dataclass_fields__}
    return RankState(**{**fields, **values})


def test_parts_that_are_not_one_model_are_refused() -> None:
    first, second = states()
    with pytest.raises(ValueError, match=r"rows 8 to 13 of 'lm_head\.weight' are in no part"):
        # The second of four ranks' rows begin where the first of two's do not end.
        join_states([first, change(second, rows=dict.fromkeys(second.rows, 13))])
    with pytest.raises(ValueError, match="rows 0 to 8 of"):
        join_states([second])
    other = {**second.model, "layers.0.weight": torch.zeros(HIDDEN, HIDDEN)}
    with pytest.raises(ValueError, match=r"different values of 'layers\.0\.weight'"):
        join_states([first, change(second, model=other)])
    (group,) = second.groups
    with pytest.raises(ValueError, match="different values of lr in group 0"):
        join_states([first, change(second, groups=({**group, "lr": 1.0},))])
    with pytest.raises(ValueError, match="1 and 2 groups"):
        join_states([first, change(second, groups=(group, group))])


def test_two_tensors_of_one_name_are_refused() -> None:
    stages = {0: nn.Sequential(nn.Linear(2, 2)), 3: nn.Sequential(nn.Linear(2, 2))}
    with pytest.raises(ValueError, match=r"two tensors of this rank are called '0\.weight'"):
        own_state(HeldModules(stages), None)


def test_a_checkpoint_without_a_stages_tensors_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no 0\.bias, 0\.weight, which stage 1 has"):
        load_model(HeldModules({1: nn.Sequential(nn.Linear(2, 2))}), {})


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match=r"make the optimizer from Pipeline\.parameters"):
        own_state(HeldModules({0: nn.Linear(2, 2)}), torch.optim.SGD(nn.Linear(3, 3).parameters()))


def test_what_cannot_be_divided_is_refused_when_it_is_saved() -> None:
    shard: VocabularyShard = VocabParallel(nn.Linear(300, 700)).shard(0, 2)
    optimizer = torch.optim.Adafactor(shard.parameters())
    for parameter in shard.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with pytest.raises(ValueError, match="keeps row_var of shape"):
        own_state(HeldModules(shard=shard), optimizer)
