"""Labels that are the next tokens already, `Layout(..., shift_labels=False)`."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import counterpoise as cp
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.planning.problem.layout import as_layout
from counterpoise.balancer.protocol.job_spec import JobSpec, difference, from_json, to_json
from counterpoise.loader import LoaderError, assembly, collate_packed, collate_padded
from counterpoise.loader.adapters.megatron import megatron_batch, megatron_iterators
from counterpoise.loader.adapters.next_token import next_token_batch, shifts_labels
from counterpoise.sched.runtime.parts import Reading
from counterpoise.sched.runtime.settings import HiddenStates, StepLoss
from tests.flat_options import flat_balance
from tests.loader.local.both_ways import by_balancer

TEXTS = [torch.arange(1, 5 + number % 7) for number in range(64)]
LENGTHS = [len(text) - 1 for text in TEXTS]
# What says nothing of labels, so that those of the samples are counted.
TOKENS: dict[str, Any] = {"cost": lambda sample: {"tokens": len(sample["input_ids"])}}


class Shifted:
    """Samples as nanoGPT, litgpt and Megatron make them: x = t[:-1], y = t[1:]."""

    def __len__(self) -> int:
        return len(TEXTS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": TEXTS[index][:-1], "labels": TEXTS[index][1:]}


class ShiftedStream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return map(Shifted().__getitem__, range(len(TEXTS)))


def collate(samples: list[Any]) -> dict[str, Any]:
    return {
        name: pad_sequence([s[name] for s in samples], batch_first=True, padding_value=fill)
        for name, fill in (("input_ids", 0), ("labels", -100))
    }


def loader(dataset: Any = None, *, cost: Any, **changes: Any) -> Any:
    options = {"budgets": {"tokens": 40}, "samples_per_step": 16, "accumulate": "auto"}
    balance = flat_balance(**{**options, **changes})
    collate_fn = None if as_layout(balance.layout) else collate
    return cp.DataLoader(
        dataset or Shifted(), shuffle=True, cost=cost, balance=balance, collate_fn=collate_fn
    )


def step_of(given: Any) -> Any:
    """Return the first step, of which every label has to count."""
    step = next(iter(given.steps()))
    given.close()
    own = [sum(LENGTHS[int(key)] for key in info.keys) for info in step.infos]
    assert [info.label_tokens for info in step.infos] == own
    shares = [
        cp.scale_loss(torch.tensor(float(n)), i) for n, i in zip(own, step.infos, strict=True)
    ]
    assert float(sum(shares)) == pytest.approx(1.0)
    return step


WAYS: list[dict[str, Any]] = [
    {"layout": "packed", "cost": {"tokens": LENGTHS, "label_tokens": LENGTHS}},
    {
        "layout": "packed",
        "cost": {"tokens": LENGTHS, "targets": LENGTHS},
        "label_tokens": "targets",
    },
    {"cost": {"tokens": LENGTHS}, "label_tokens": "batch"},
    {"cost": {"tokens": LENGTHS, "label_tokens": LENGTHS}},
    {"layout": "packed", **TOKENS},
    {"layout": "padded", **TOKENS},
    TOKENS,
]


@pytest.mark.parametrize("way", WAYS)
def test_every_label_counts_whoever_counts_them(way: dict[str, Any]) -> None:
    step = step_of(loader(**way, shift_labels=False))
    assert not any(info.shift_labels for info in step.infos)
    for batch, info in zip(step.microbatches, step.infos, strict=True):
        assert int((batch["labels"] != -100).sum()) == info.label_tokens


def test_workers_elsewhere_count_every_label_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "choose_connection", by_balancer)
    for way in (*WAYS[:3], *WAYS[4:]):
        step_of(loader(**way, shift_labels=False))


@pytest.mark.parametrize("layout", ["packed", "torch"])
@pytest.mark.parametrize("shift_labels", [True, False])
def test_other_counts_are_refused_with_it_and_without(layout: str, shift_labels: bool) -> None:
    wrong = {"tokens": LENGTHS, "label_tokens": [count + 1 for count in LENGTHS]}
    given = loader(cost=wrong, layout=layout, shift_labels=shift_labels)
    with pytest.raises(LoaderError, match="divided by the wrong number") as error:
        next(iter(given))
    assert "shift_labels=False)" not in str(error.value)


def test_the_refusal_names_it_where_the_counts_would_fit_then() -> None:
    with pytest.raises(LoaderError, match=r"already, give Layout\(..., shift_labels=False\)"):
        next(iter(loader(layout="packed", cost=WAYS[0]["cost"])))
    less = {"tokens": LENGTHS, "label_tokens": [count - 1 for count in LENGTHS]}
    for layout in ("packed", "torch"):
        with pytest.raises(LoaderError, match=r"label i \+ 1, leave Layout"):
            next(iter(loader(layout=layout, cost=less, shift_labels=False)))


@pytest.mark.parametrize("way", [WAYS[2], *WAYS[4:]])
def test_labels_that_are_seen_to_be_shifted_are_warned_of_once(
    way: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        list(loader(**way))
    said = [each for each in caplog.messages if "next tokens already" in each]
    assert len(said) == 1
    assert "Layout(..., shift_labels=False)" in said[0]
    caplog.clear()
    list(loader(**way, shift_labels=False))
    list(loader(cost=WAYS[3]["cost"]))  # which a loop that shifts nothing has counted rightly
    at_token = [{"input_ids": text, "labels": text} for text in TEXTS]
    list(loader(at_token, **way))
    assert not [each for each in caplog.messages if "next tokens already" in each]


def test_layouts_keep_the_first_labels() -> None:
    some = [Shifted()[0], Shifted()[3]]
    packed = collate_packed(some, shift_labels=False)
    assert packed["labels"].tolist() == [[*range(2, 5), *range(2, 8)]]
    padded = collate_padded(some, shift_labels=False)
    assert padded["labels"].tolist() == [[2, 3, 4, *[-100] * 3], [*range(2, 8)]]


def test_a_job_and_a_ledger_say_it_and_another_value_does_not_go_on() -> None:
    plan = PlanConfig(1, 8, 1, ("tokens",), (None,))
    shifted = JobSpec(plan, shift_labels=False)
    assert from_json(to_json(shifted)) == shifted
    assert "shift_labels" in difference(to_json(JobSpec(plan)), to_json(shifted))
    options: dict[str, Any] = {"budgets": {"tokens": 40}, "layout": "packed"}
    planned: Any = {"shuffle": True}, {**options, "samples_per_step": 16, "accumulate": 4}
    loads: Any = (Shifted(), *planned), (ShiftedStream(), {}, options)
    for dataset, given, chosen in loads:
        each = [
            cp.DataLoader(
                dataset, **TOKENS, balance=flat_balance(**chosen, shift_labels=shifts), **given
            )
            for shifts in (True, False)
        ]
        next(iter(each[0]))
        with pytest.raises(ValueError, match=r"shift_labels=False|digest"):
            each[1].load_state_dict(each[0].state_dict())
        for one in each:
            one.close()


@pytest.mark.parametrize("label_tokens", [None, "label_tokens", "batch"])
def test_packs_of_a_stream_count_every_label(label_tokens: str | None) -> None:
    balance = cp.Balance(
        budgets={"tokens": 40},
        layout=cp.Layout("packed", shift_labels=False),
        label_tokens=label_tokens,
    )
    given = cp.DataLoader(ShiftedStream(), balance=balance)
    for batch, info in given.with_info():
        assert info.label_tokens == batch["labels"].numel() == int((batch["labels"] > 0).sum())
        assert not info.shift_labels


def test_auto_counts_every_label() -> None:
    balance = cp.Balance("auto", layout=cp.Layout("torch", shift_labels=False))
    given = cp.DataLoader(
        Shifted(), 4, shuffle=True, collate_fn=collate, balance=balance, ranks=cp.Ranks(virtual=2)
    )
    for batch, info in given.with_info():
        assert info.label_tokens == int((batch["labels"] != -100).sum())
    given.close()


def test_a_samplers_infos_say_it() -> None:
    balance = cp.Balance(samples_per_step=8, layout=cp.Layout("torch", shift_labels=False))
    costs = {"tokens": LENGTHS, "label_tokens": LENGTHS}
    sampler = cp.BalancedBatchSampler(costs, balance, ranks=(0, 1))
    batch = next(iter(sampler))
    info = sampler.info(0)
    assert info.label_tokens == sum(LENGTHS[each] for each in batch)
    assert not info.shift_labels


def test_losses_by_source_count_first_labels() -> None:
    given = loader(
        cp.Mixture({"a": (Shifted(), 1), "b": (Shifted(), 1)}), **TOKENS, shift_labels=False
    )
    for batch, info in given.with_info():
        logits = torch.zeros(*batch["labels"].shape, 16)
        losses = cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
        found = cp.loader.loss_by_source(losses, info, batch)
        assert sum(each.count for each in found.values()) == info.label_tokens
    given.close()


def test_adapters_do_not_shift_again() -> None:
    given = loader(layout="packed", **TOKENS, shift_labels=False)
    assert not shifts_labels(given)
    assert shifts_labels(cp.DataLoader(Shifted()))
    batch = collate_packed([Shifted()[0]], shift_labels=False)
    assert next_token_batch(batch, shift_labels=False)[1].tolist() == [[2, 3, 4]]
    assert megatron_batch(batch, shift_labels=False)["labels"].tolist() == [[2, 3, 4]]
    first = next(megatron_iterators(given)[0])
    assert first["loss_mask"].all()
    given.close()


def test_trainer_whose_models_shift_refuses_it() -> None:
    given: Any = loader(layout="packed", **TOKENS, shift_labels=False)
    with pytest.raises(ValueError, match=r"models of transformers shift them.*labels = input_ids"):
        cp.adapters.attach_trainer(SimpleNamespace(), given)
    given.close()


@pytest.mark.parametrize("shift_labels", [True, False])
def test_a_pipeline_that_shifts_takes_labels_that_are_shifted_as_they_are(
    shift_labels: bool,
) -> None:
    labels = torch.tensor([[-100, 6, 7]])
    info = SimpleNamespace(shift_labels=shift_labels)
    step: Any = SimpleNamespace(microbatches=[{"labels": labels}], infos=[info])
    loss = StepLoss(shift_labels=True, weigh=lambda _: 1.0)
    reading = Reading(HiddenStates(lambda _: (1,)), loss, torch.device("cpu"))
    read = reading.read(step, (False,), True, [frozenset({"labels"})])
    wanted = [[6, 7, -100]] if shift_labels else labels.tolist()
    assert read.microbatches[0].fields["labels"].tolist() == wanted


def test_it_is_true_or_false() -> None:
    with pytest.raises(ValueError, match="shift_labels is 1, allowed are True and False"):
        cp.Balance(layout=cp.Layout("torch", shift_labels=1))  # type: ignore[arg-type]
    balance = cp.Balance(layout=cp.Layout("torch", shift_labels=False))
    assert cp.Balance.from_json(balance.to_json()) == balance
    assert repr(balance) == "Balance(layout=Layout(name='torch', shift_labels=False))"
