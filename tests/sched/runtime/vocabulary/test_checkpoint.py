"""Checkpoints have the plain layers' names and rows: any number of ranks loads them, bit by bit."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from counterpoise.sched.runtime.vocabulary.shard import (
    VocabParallel,
    VocabularyShard,
    join_state_dicts,
)

SIZE, HIDDEN = 13, 4


class Plain(nn.Module):
    """The whole layers, under the names that a model might have for them."""

    def __init__(self, tied: bool, bias: bool, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed_tokens = nn.Embedding(SIZE, HIDDEN)
        self.output = nn.Linear(HIDDEN, SIZE, bias=bias)
        if tied:
            self.output.weight = self.embed_tokens.weight


def divide(plain: Plain, ranks: int, device: str | None = None) -> list[VocabularyShard]:
    parallel = VocabParallel(
        plain.output,
        plain.embed_tokens,
        lm_head_name="output",
        embedding_name="embed_tokens",
    )
    return [parallel.shard(rank, ranks, device) for rank in range(ranks)]


def assert_same(found: dict[str, torch.Tensor], plain: Plain) -> None:
    wanted = plain.state_dict()
    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_saved_on_four_ranks_it_loads_on_two_and_into_the_plain_layers(
    tied: bool, bias: bool
) -> None:
    plain = Plain(tied, bias, 0)
    joined = join_state_dicts([shard.state_dict() for shard in divide(plain, 4)])
    assert_same(joined, plain)

    other = Plain(tied, bias, 1)
    other.load_state_dict(joined)
    assert_same(other.state_dict(), plain)

    two = divide(Plain(tied, bias, 2), 2)
    for shard in two:
        shard.load_state_dict(joined)
    assert_same(join_state_dicts([shard.state_dict() for shard in two]), plain)


def test_a_shard_loads_its_own_rows() -> None:
    plain = Plain(False, True, 0)
    for saved, shard in zip(divide(plain, 4), divide(Plain(False, True, 1), 4), strict=True):
        shard.load_state_dict(saved.state_dict())
        pairs = zip(shard.parameters(), saved.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_padding_is_zero_again_after_loading() -> None:
    plain = Plain(False, True, 0)
    shard = divide(plain, 4)[3]
    with torch.no_grad():
        for parameter in shard.parameters():
            parameter.fill_(float("nan"))
    shard.load_state_dict(plain.state_dict())
    assert all(parameter.isfinite().all() for parameter in shard.parameters())
    assert not shard.lm_head.weight[1:].any()


@pytest.mark.parametrize("tied", [False, True])
def test_shards_of_the_meta_device_take_their_rows_from_a_checkpoint(
    tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Plain(tied, True, 0)
    for layer in (nn.Linear, nn.Embedding):
        # torch imports much to initialize what has no memory.
        monkeypatch.setattr(layer, "reset_parameters", lambda _: None)
    with torch.device("meta"):
        empty = Plain(tied, True, 1)
    shards = divide(empty, 4)
    for shard in shards:
        assert all(parameter.is_meta for parameter in shard.parameters())
        shard.load_state_dict(plain.state_dict(), assign=True)
        assert (shard.embedding.weight is shard.lm_head.weight) == tied
    assert_same(join_state_dicts([shard.state_dict() for shard in shards]), plain)


def test_a_shard_inside_a_module_has_the_modules_prefix() -> None:
    plain = Plain(False, False, 0)
    model = nn.ModuleDict({"vocabulary": divide(plain, 2)[1]})
    state = model.state_dict()
    assert sorted(state) == ["vocabulary.embed_tokens.weight", "vocabulary.output.weight"]
    other = nn.ModuleDict({"vocabulary": divide(Plain(False, False, 1), 2)[1]})
    other.load_state_dict(state)
    assert all(torch.equal(other.state_dict()[name], state[name]) for name in state)


@pytest.mark.parametrize("name", ["embed_tokens.weight", "output.weight"])
def test_a_tied_weight_may_be_saved_under_one_name(name: str) -> None:
    plain = Plain(True, False, 0)
    state = OrderedDict({name: plain.embed_tokens.weight})
    (shard,) = divide(Plain(True, False, 1), 1)
    shard.load_state_dict(state)
    assert_same(shard.state_dict(), plain)
    assert list(state) == [name]


def test_rows_that_do_not_fit_are_refused_with_what_would() -> None:
    shard = divide(Plain(False, False, 0), 4)[3]
    state = Plain(False, False, 1).state_dict()
    state["output.weight"] = state["output.weight"][:7]
    message = "output.weight has 7 rows; rank 3 takes all 13, or its own 1"
    with pytest.raises(RuntimeError, match=message):
        shard.load_state_dict(state)


def test_a_missing_layer_is_named_as_torch_names_it() -> None:
    (shard,) = divide(Plain(False, False, 0), 1)
    with pytest.raises(RuntimeError, match=r"lm_head\.weight"):
        shard.load_state_dict({"embed_tokens.weight": torch.zeros(SIZE, HIDDEN)})


def test_parts_of_different_layers_are_not_joined() -> None:
    parts = [divide(Plain(False, bias, 0), 2)[0].state_dict() for bias in (True, False)]
    with pytest.raises(ValueError, match="rank 1 has"):
        join_state_dicts(parts)


def test_shards_are_made_on_the_device_that_is_named() -> None:
    for shard in divide(Plain(False, True, 0), 2, device="meta"):
        assert {parameter.device.type for parameter in shard.parameters()} == {"meta"}
