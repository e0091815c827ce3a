"""Shapes: samples padded to a multiple, microbatches padded to one of a few lengths."""

import math
from collections import Counter
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from counterpoise import Ranks
from counterpoise.balancer import Images, PlanConfig, Shapes, Window, make_planner
from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.loader import (
    Balance,
    BalancedBatchSampler,
    DataLoader,
    collate_packed,
    collate_padded,
    hf_kwargs,
)
from tests.flat_options import flat_balance

RESOURCES = ("tiles", "tokens", "label_tokens")
SHAPED = ("buckets", "number", "")


def random_setting(seed: int) -> tuple[Balance, PlanConfig, np.ndarray]:
    """A Balance with every option of shapes drawn, its plan, and the costs of some samples."""
    draw = np.random.default_rng(seed)
    lengths = draw.lognormal(4, 0.9, draw.integers(30, 90)).astype(int).clip(1, 1000)
    costs = np.stack([draw.integers(0, 5, len(lengths)), lengths, lengths // 2], axis=1)
    align, cp = int(draw.choice([1, 8, 12, 16])), int(draw.choice([1, 1, 2, 3]))
    multiple = math.lcm(align, 2 * cp if cp > 1 else 1)
    budget = int(draw.integers(600, 3000)) // multiple * multiple
    options: dict[str, Any] = {"align": {"tokens": align}, "cp": cp}
    options["budgets"] = {"tokens": budget}
    shaped = SHAPED[seed % len(SHAPED)]
    if shaped == "buckets":
        inner = draw.integers(1, budget, draw.integers(1, 5)) // multiple * multiple
        options["buckets"] = {"tokens": [int(each) for each in inner if each] + [budget]}
    elif shaped:
        options["buckets"] = int(draw.integers(1, 9))
    if draw.integers(2):
        options["budgets"] = {"tiles": 40, **options["budgets"]}
    mode: Any = str(draw.choice(["exact", "exact", "window", "epoch"]))
    if mode == "exact":
        options |= {"waits": str(draw.choice(["microbatch", "step"]))}
        options |= {"counts": "equal"} if draw.integers(5) == 0 else {}
        options |= {"time_ns": {"tokens": 3, "attention_pairs": 1}} if draw.integers(5) == 0 else {}
    elif draw.integers(3) == 0:
        options["grouping"] = "isf"
    balance = flat_balance(
        mode=mode, seed=seed, layout="packed", oversize="refuse",
        accumulate="auto" if mode == "exact" else 2, **options,
    )  # fmt: skip
    config = PlanConfig.from_balance(
        balance, ranks=int(draw.integers(1, 4)), resources=RESOURCES,
        samples_per_step=int(draw.integers(20, 30)),
    )  # fmt: skip
    return balance, config, costs


def check_setting(seed: int) -> None:
    balance, config, costs = random_setting(seed)
    planner, start, step, seen = make_planner(config), 0, 0, list[int]()
    shapes, multiple = set[int](), balance.padding.multiples["tokens"]
    buckets = balance.padding.buckets.get("tokens", ())
    while start < len(costs):
        some = costs[start : start + planner.window_samples]
        last = start + planner.window_samples >= len(costs)
        planned = planner.plan(Window(0, step, start, some, last=last))
        refused = set(planned.oversize)
        assert refused == {
            start + n
            for n, (tiles, tokens, _) in enumerate(some[: planned.consumed].tolist())
            if -(-tokens // multiple) * multiple > balance.budgets["tokens"]
            or tiles > balance.budgets.get("tiles", tiles)
        }
        seen += refused
        for batch in planned.batches:
            for microbatch in chain(*batch.ranks):
                seen += microbatch.ordinals
                shapes |= check_microbatch(balance, config, costs[list(microbatch.ordinals)])
        start, step = start + planned.consumed, step + len(planned.batches)
    assert Counter(seen) == Counter(range(len(costs)))
    if buckets:
        assert shapes <= {*buckets}
        assert len(shapes) <= len(buckets)


def check_microbatch(balance: Balance, config: PlanConfig, rows: Int64) -> set[int]:
    """Compare a microbatch's batch with what it was planned to cost; return its length."""
    lengths, multiple = rows[:, 1].tolist(), balance.padding.multiples["tokens"]
    costs, padding = config.sizing.total(rows)
    assert costs[1] <= balance.budgets["tokens"]
    assert costs[0] == rows[:, 0].sum() <= balance.budgets.get("tiles", 1000)
    assert (padding[0], padding[2]) == (0, 0)
    assert costs[1] - padding[1] == sum(lengths)
    samples = [{"input_ids": np.full(n, 7), "labels": np.full(n, 7)} for n in lengths]
    batch: dict[str, Any] = collate_packed(samples, **balance.padding.collate_arguments())
    total = batch["input_ids"].shape[1]
    assert total % multiple == 0
    if not samples:
        return {total} if balance.padding.buckets else set()
    assert total == costs[1]
    for name in ("labels", "position_ids"):
        assert batch[name].shape == (1, total)
    ends: torch.Tensor = batch["cu_seq_lens"]
    begins = batch.get("cu_seq_lens_padded", ends)
    real, room = ends.diff().tolist(), begins.diff().tolist()
    filling = batch.get("pad_sequences", 0)
    assert real[: len(lengths)] == lengths
    assert len(real) == len(room) == len(lengths) + filling
    assert all(each % multiple == 0 and one <= each for one, each in zip(real, room, strict=True))
    assert begins[-1] == total
    assert batch["max_length"] >= max(room[: len(lengths)])
    # no token is lost or made: what is no sample's has no label
    is_real = torch.cat([
        torch.arange(n) < one for n, one in zip(room, [*lengths, 0], strict=False)
    ])  # fmt: skip
    assert (batch["input_ids"][0] == 7).tolist() == is_real.tolist()
    first = batch["position_ids"][0] == 0
    assert (batch["labels"][0] == 7).tolist() == (is_real & ~first).tolist()
    assert torch.nonzero(first).flatten().tolist() == begins[:-1].tolist()
    return {total}


@pytest.mark.parametrize(
    ("first", "last"), [(0, 200), pytest.param(200, 1000, marks=pytest.mark.long)]
)
def test_random_settings(first: int, last: int) -> None:
    for seed in range(first, last):
        check_setting(seed)


LENGTHS = np.random.default_rng(7).lognormal(4, 0.8, 400).astype(int).clip(2, 900).tolist()


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples of given lengths, which say who they are."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = np.full(LENGTHS[index], index)
        return {"input_ids": ids, "labels": ids}


COSTS = {"tokens": LENGTHS, "label_tokens": [n - 1 for n in LENGTHS]}


def open_loader(workers: int = 0, **options: Any) -> DataLoader:
    given = {"budgets": {"tokens": 1024}, "align": {"tokens": 16}, "layout": "packed"}
    sizes = {"samples_per_step": 64, "accumulate": "auto", "oversize": "refuse"}
    balance = flat_balance(**{**given, **sizes, **options})
    return DataLoader(
        Texts(), balance=balance, shuffle=True, ranks=Ranks(virtual=2), num_workers=workers,
        cost=COSTS,
    )  # fmt: skip


def rows_of(loader: DataLoader) -> list[tuple[Any, ...]]:
    """What microbatches hold, and what is said of them; costs are those of the batch."""
    found = []
    for batch in loader:
        info = loader.step_info
        assert info is not None
        if info.samples:
            assert info.costs["tokens"] == batch["input_ids"].numel()
            real = sum(LENGTHS[int(key)] for key in info.keys)
            assert info.costs["tokens"] - info.padding["tokens"] == real
            assert info.label_tokens == real - info.samples == (batch["labels"] != -100).sum()
        found.append((batch["input_ids"].shape[1], info.keys, batch["cu_seq_lens"].tolist()))
    return found


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"buckets": 4}, 4),
        ({"buckets": {"tokens": [512, 768, 1024]}, "cp": 4}, 3),
        ({"buckets": 1, "waits": "step"}, 1),
        ({"buckets": 8, "mode": "window", "accumulate": 2}, 8),
    ],
)
def test_an_epoch_has_at_most_so_many_shapes(options: dict[str, Any], most: int) -> None:
    rows = rows_of(open_loader(**options))
    assert len({length for length, *_ in rows}) <= most
    assert sorted(int(key) for _, keys, _ in rows for key in keys) == list(range(len(LENGTHS)))


def test_without_them_an_epoch_has_many_shapes() -> None:
    assert len({length for length, *_ in rows_of(open_loader(samples_per_step=20, align={}))}) > 16


def test_workers_and_a_balancer_deliver_the_same(request: pytest.FixtureRequest) -> None:
    here = rows_of(open_loader(buckets=4))
    assert rows_of(open_loader(2, buckets=4)) == here
    request.getfixturevalue("through_balancer")
    loader = open_loader(1, buckets=4)
    assert rows_of(loader) == here
    loader.close()


def test_a_resumed_epoch_goes_on_and_other_shapes_are_refused() -> None:
    whole, made = rows_of(open_loader(buckets=4)), open_loader(buckets=4)
    for _ in zip(range(7), made, strict=False):
        pass
    resumed = open_loader(buckets=4)
    resumed.load_state_dict(made.state_dict())
    assert rows_of(resumed) == whole[7:]
    for other in ({"buckets": 5}, {"buckets": 4, "cp": 16}, {}):
        with pytest.raises(ValueError, match="only the very same plan"):
            open_loader(**other).load_state_dict(made.state_dict())


def test_a_sampler_plans_shapes_and_the_collate_function_pads_to_them() -> None:
    balance = Balance(
        budgets={"tokens": 1024}, shapes=Shapes(align=16, buckets=4), samples_per_step=64,
        accumulate="auto", oversize="refuse",
    )  # fmt: skip
    sampler = BalancedBatchSampler({"tokens": LENGTHS}, balance, ranks=(0, 2))
    collate = partial(collate_packed, **balance.padding.collate_arguments())
    loader = torch.utils.data.DataLoader(Texts(), batch_sampler=sampler, collate_fn=collate)
    lengths = [batch["input_ids"].shape[1] for batch in loader]
    assert {*lengths} <= {256, 512, 768, 1024}
    assert lengths == [sampler.info(number).costs["tokens"] for number in range(len(lengths))]


def test_a_compiled_model_compiles_at_most_so_often() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(400, 8), torch.nn.Linear(8, 400)

        def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            hidden = self.embed(ids)
            sample = (positions == 0).cumsum(1)
            own = (sample[:, :, None] == sample[:, None]).tril()
            mixed = torch.nn.functional.scaled_dot_product_attention(
                hidden, hidden, hidden, attn_mask=own
            )
            return self.head(mixed).logsumexp(-1).sum()

    def compiled(most: int, **options: Any) -> int:
        torch._dynamo.reset()
        counters.clear()
        model = torch.compile(Model(), backend="eager", dynamic=False)
        for batch in islice(open_loader(**options), most):
            model(batch["input_ids"], batch["position_ids"]).backward()
        return counters["stats"]["unique_graphs"]

    with torch._dynamo.config.patch(cache_size_limit=64, accumulated_cache_size_limit=64):
        assert compiled(20, buckets=2) <= 2
        assert compiled(5, samples_per_step=20, align={}) > 2


@pytest.mark.parametrize("shapes", [16, Shapes(16, cp=4, buckets=4), "fixed"])
def test_a_collate_fn_of_ones_own_gets_the_sizes_that_are_planned(shapes: Any) -> None:
    balance = Balance(
        budgets={"tokens": 1024}, samples_per_step=64, accumulate="auto", oversize="refuse",
        shapes=shapes, images=Images(all_or_none="tokens"),
    )  # fmt: skip
    collate = partial(collate_packed, **balance.padding.collate_arguments())
    loader = DataLoader(
        Texts(), balance=balance, shuffle=True, ranks=Ranks(virtual=2), cost=COSTS,
        collate_fn=collate,
    )  # fmt: skip
    lengths = {length for length, *_ in rows_of(loader)}
    assert {length % 16 for length in lengths} == {0}
    if not isinstance(shapes, int):
        assert lengths <= {*balance.padding.buckets["tokens"]}


@pytest.mark.parametrize("grouping", ["balanced", "fixed"])
def test_padded_rows_are_aligned_and_cost_what_they_hold(grouping: Any) -> None:
    sizes: dict[str, Any] = {"budgets": {"tokens": 2048}} if grouping == "balanced" else {}
    balance = Balance(
        grouping=grouping, layout="padded", shapes=Shapes(align=8, cp=6), accumulate=2,
        samples_per_step=16 if sizes else None, **sizes,
    )  # fmt: skip
    loader = DataLoader(
        Texts(), 1 if sizes else 4, balance=balance, shuffle=True, ranks=Ranks(virtual=2),
        cost=COSTS
    )  # fmt: skip
    for batch in loader:
        info = loader.step_info
        assert info is not None
        assert batch["input_ids"].shape[1] % 24 == 0
        if sizes:
            assert info.costs["tokens"] == batch["input_ids"].numel()
            real = info.costs["tokens"] - info.padding["tokens"]
            assert real == batch["attention_mask"].sum()


def test_varlen_kernels_get_borders_without_gaps() -> None:
    rows = [{"input_ids": np.arange(1, 18)}, {"input_ids": np.arange(1, 4)}]
    batch = collate_packed(rows, align=16, length=(32, 64))
    given = hf_kwargs(batch)
    assert batch["cu_seq_lens"].tolist() == [0, 17, 20, 36]
    assert given["cu_seq_lens_q"].tolist() == given["cu_seq_lens_k"].tolist() == [0, 32, 48, 64]
    assert given["max_length_q"] == 64


def test_collate_functions_pad_to_the_first_length_that_is_enough() -> None:
    rows = [{"input_ids": np.arange(1, 18)}, {"input_ids": np.arange(1, 4)}]
    assert collate_packed(rows, align=16, length=(16, 64, 96))["input_ids"].shape == (1, 64)
    assert collate_padded(rows, length=[8, 24])["input_ids"].shape == (2, 24)
    with pytest.raises(ValueError, match="to have 32 tokens, and its samples have 48"):
        collate_packed(rows, align=16, length=(16, 32))


SIZED: dict[str, Any] = {"budgets": {"tokens": 4096}, "oversize": "refuse"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"align": "tiles"}, "all_or_none='tiles'"),
        ({"align": {"tokens": 0}}, "align is {'tokens': 0}, allowed is a positive integer"),
        ({"cp": 0}, "cp is 0, allowed is the number of context-parallel ranks"),
        ({"buckets": {"tokens": []}}, "allowed are sizes of a microbatch"),
        ({"buckets": {"tokens": 4096}}, "allowed are sizes of a microbatch"),
        ({"buckets": 4, "oversize": "refuse"}, "there is none: give budgets"),
        ({"budgets": {"tokens": 4096}, "buckets": 4}, "use oversize 'refuse' or 'error'"),
        ({**SIZED, "buckets": {"tokens": [8192]}}, "largest bucket of tokens is 8192, and its"),
        ({**SIZED, "buckets": 1, "align": {"tokens": 10}}, "of 10 .*: use 4090 or 4100"),
        ({**SIZED, "buckets": 4, "work": "padded"}, "work or layout is 'padded'"),
        ({**SIZED, "buckets": 4, "layout": "padded"}, "use layout 'packed'"),
        ({**SIZED, "buckets": 4, "grouping": "auto"}, "grouping is 'auto'"),
        ({"buckets": {"tokens": [9]}, "oversize": "refuse", "grouping": "fixed"}, "is 'fixed'"),
        ({"align": {"patches": 4}, "layout": "packed"}, "pads tokens alone: leave patches out"),
        (
            {"buckets": {"frames": [9]}, "oversize": "refuse", "layout": "packed"},
            "buckets pads frames, and layout 'packed' pads tokens alone: leave frames out",
        ),
    ],
)  # fmt: skip
def test_shapes_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        flat_balance(**options)


def test_shapes_of_what_samples_do_not_cost_are_refused() -> None:
    with pytest.raises(ValueError, match=r"align .or cp. names tokens, but samples cost length"):
        DataLoader(
            Texts(),
            balance=Balance(shapes=Shapes(cp=2)),
            shuffle=True,
            cost={"length": LENGTHS},
            ranks=Ranks(virtual=1),
        )


def test_shapes_are_kept_as_json_and_change_the_digest() -> None:
    balance = Balance(shapes=Shapes(align=16, buckets={"tokens": [4096, 1024]}), oversize="refuse")
    assert balance.budgets == {"tokens": 4096}
    assert Balance.from_json(balance.to_json()) == balance
    plain = Balance(budgets={"tokens": 4096}, oversize="refuse")
    configs = [
        PlanConfig.from_balance(each, ranks=1, resources=("tokens",), samples_per_step=8)
        for each in (
            plain,
            balance,
            Balance(**SIZED, shapes=16),
            Balance(**SIZED, shapes=Shapes(cp=2)),
        )
    ]
    assert len({config.digest() for config in configs}) == 4
