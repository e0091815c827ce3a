"""Label tokens: who counts them, the same for all ranks, checked against labels that are there."""

import contextlib
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise import Ranks
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, difference, to_json
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader, LoaderError
from counterpoise.workers.sources.labels import count_label_tokens
from tests.flat_options import flat_balance
from tests.loader import balanced_data as made

COUNT = 24


class Texts:
    """Samples with labels, every fourth without; what they cost only cost= says."""

    def __init__(self, first: int = 1) -> None:
        self.first = first

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = np.arange(2 + index % 7)
        sample: dict[str, Any] = {"input_ids": tokens, "name": str(index)}
        if (index + self.first) % 4:
            sample["labels"] = np.where(tokens % 3 == 1, -100, tokens)
        return sample


def count(sample: dict[str, Any]) -> int:
    return count_label_tokens(sample["labels"]) if "labels" in sample else 0


def cost(sample: dict[str, Any]) -> dict[str, int]:
    return {"tokens": len(sample["input_ids"])}


def with_targets(sample: dict[str, Any]) -> dict[str, int]:
    return {**cost(sample), "targets": count(sample)}


def all_labels(sample: dict[str, Any]) -> dict[str, int]:
    """Count the labels of samples whose labels stand at the token before theirs."""
    labels = sample.get("labels", np.array([-100]))
    return {**cost(sample), "label_tokens": int(np.sum(labels != -100))}


def two_too_many(sample: dict[str, Any]) -> dict[str, int]:
    return {**cost(sample), "label_tokens": count(sample) + 2}


def loader(cost: Any, dataset: Any = None, **changes: Any) -> DataLoader[Any, Any]:
    options: dict[str, Any] = {"budgets": {"tokens": 20}, "samples_per_step": 8, "seed": 1}
    options |= {"accumulate": "auto", **changes}
    return DataLoader(
        dataset or Texts(), balance=flat_balance(**options), cost=cost, shuffle=True,
        ranks=Ranks(virtual=2),
        collate_fn=made.as_list if options.get("layout", "torch") == "torch" else None,
    )  # fmt: skip


def check_counts(given: DataLoader[Any, Any]) -> None:
    """Check every microbatch's, rank's and step's label tokens against the samples' own labels."""
    steps: dict[int, list[Any]] = {}
    for batch, info in given.with_info():
        assert info.label_tokens == sum(map(count, batch))
        steps.setdefault(info.step, []).append(info)
    given.close()
    assert len(steps) == COUNT // 8
    for infos in steps.values():
        whole = sum(info.label_tokens for info in infos)
        assert {info.step_label_tokens for info in infos} == {whole}
        for rank in range(2):
            own = [info for info in infos if info.rank == rank]
            assert {i.rank_label_tokens for i in own} == {sum(i.label_tokens for i in own)}


def test_where_costs_say_nothing_workers_count_the_labels_of_decoded_samples() -> None:
    check_counts(loader(cost))


def test_a_resource_of_any_name_counts_them_where_it_is_named() -> None:
    check_counts(loader(with_targets, label_tokens="targets"))


def test_the_first_sample_decides_for_all_whether_they_are_counted() -> None:
    given = loader(cost, Texts(first=0))
    assert {info.step_label_tokens for _, info in given.with_info()} == {0}
    assert given.state_dict()["label_tokens"] == ""
    given.close()


def test_labels_at_the_token_before_theirs_are_counted_so_by_a_loop_of_its_own() -> None:
    given = loader(all_labels)
    assert sum(info.label_tokens for _, info in given.with_info()) > 0
    given.close()
    # the layouts take each first label away
    with pytest.raises(LoaderError, match=r"says that they have \d+ label tokens, and their label"):
        list(loader(all_labels, layout="padded"))


def test_a_count_that_the_labels_contradict_ends_the_run_at_once() -> None:
    wrong = loader(two_too_many)
    with pytest.raises(
        LoaderError, match=r"cost 'label_tokens' of samples .* divided by the wrong"
    ):
        next(iter(wrong))
    wrong.close()


def test_a_name_that_no_cost_has_is_refused() -> None:
    with pytest.raises(ValueError, match="label_tokens is 'targets', but samples cost tokens, lab"):
        loader(cost, label_tokens="targets")
    with pytest.raises(ValueError, match="label_tokens is 'targets', but samples cost tokens"):
        BalancedBatchSampler({"tokens": [1, 2]}, Balance(label_tokens="targets"))
    with pytest.raises(ValueError, match="label_tokens is 3, allowed is the name of a resource"):
        Balance(label_tokens=3)  # type: ignore[arg-type]


def test_a_sampler_counts_by_the_name_too() -> None:
    balance = Balance(samples_per_step=2, label_tokens="targets")
    one = BalancedBatchSampler({"tokens": [9, 9], "targets": [4, 5]}, balance, ranks=(0, 1))
    assert len(list(one)) == 1
    assert one.info(0).step_label_tokens == 9


def test_ranks_and_ledgers_must_agree_on_who_counts() -> None:
    plan = PlanConfig(2, 8, 1, ("tokens", "targets"), (None, None))
    one, other = JobSpec(plan, label_tokens="targets"), JobSpec(plan)
    assert (one.label, other.label) == (1, -1)
    assert difference(to_json(one), to_json(other)) == (
        "label_tokens: 'targets' here, 'label_tokens' there"
    )
    state = loader(with_targets, label_tokens="targets").state_dict()
    assert state["label_tokens"] == "targets"
    with pytest.raises(ValueError, match="label_tokens was 'targets' and is 'label_tokens'"):
        loader(with_targets).load_state_dict(state)


# --- labels that only collate_fn makes


def shifted(samples: list[Any]) -> dict[str, Any]:
    """Collate as Hugging Face's collators do: labels are made of the tokens, -100 fills up."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    labels = torch.full((len(samples), longest), -100)
    for row, sample in enumerate(samples):
        tokens = torch.as_tensor(sample["input_ids"])
        labels[row, : len(tokens)] = torch.where(tokens % 3 == 1, -100, tokens)
    return {"labels": labels, "names": [sample["name"] for sample in samples]}


class Unlabelled(Texts):
    """Samples of which collate_fn makes the labels."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: v for name, v in super().__getitem__(index).items() if name != "labels"}


def made_of(batch: dict[str, Any]) -> int:
    return int((batch["labels"][:, 1:] != -100).sum())


def collated(ranks: int = 2, **changes: Any) -> DataLoader[Any, Any]:
    named = {"budgets": {"tokens": 20}, "samples_per_step": 8, "seed": 1, "accumulate": 3}
    options: dict[str, Any] = named | changes
    given = {"cost": cost} if "label_tokens" not in changes else {"cost": TABLE}
    return DataLoader(
        Unlabelled(), balance=flat_balance(**options), shuffle=True, ranks=Ranks(virtual=ranks),
        collate_fn=shifted, **given,
    )  # fmt: skip


TABLE = {"tokens": [2 + index % 7 for index in range(COUNT)]}


@pytest.mark.parametrize("changes", [{}, {"label_tokens": "batch"}], ids=["found", "named"])
def test_labels_that_only_collate_fn_makes_are_counted_in_the_batches(changes: Any) -> None:
    given = collated(**changes)
    assert given.state_dict()["label_tokens"] == "batch"
    seen = [(info, made_of(batch)) for batch, info in given.with_info()]
    given.close()
    assert len({info.step for info, _ in seen if info.step_label_tokens}) == COUNT // 8
    for info, here in seen:
        step = [(each, count) for each, count in seen if each.step == info.step]
        assert info.label_tokens == here
        assert info.step_label_tokens == sum(count for _, count in step)
        assert info.rank_label_tokens == sum(c for each, c in step if each.rank == info.rank)


def test_steps_and_batches_have_the_same_counts() -> None:
    one, other = collated(), collated()
    by_batch = [info for _, info in one.with_info()]
    assert [info for step in other.steps() for info in step.infos] == by_batch
    one.close()
    other.close()


@pytest.mark.parametrize("taken", [1, 3, 5, 6, 7])
def test_the_rest_of_a_step_that_is_resumed_has_the_counts_of_the_whole_step(taken: int) -> None:
    first = collated()
    iterator = first.with_info()
    walk = iter(iterator)
    for _ in range(taken):
        next(walk)
    state = first.state_dict()
    expected = [(info, batch["names"]) for batch, info in walk]
    second = collated()
    second.load_state_dict(state)
    assert [(info, batch["names"]) for batch, info in second.with_info()] == expected
    first.close()
    second.close()


def test_a_collate_fn_that_raises_in_the_middle_of_a_step_is_called_again() -> None:
    fails = iter([False, False, True, False, True] + [False] * 100)

    def raising(samples: list[Any]) -> dict[str, Any]:
        if len(samples) > 0 and next(fails):
            raise OSError("now and then")
        return shifted(samples)

    def fixed(collate_fn: Any) -> DataLoader[Any, Any]:
        balance = Balance("fixed", accumulate=2, seed=1, label_tokens="batch")
        return DataLoader(
            Unlabelled(), balance=balance, batch_size=2, shuffle=True, ranks=Ranks(virtual=2),
            collate_fn=collate_fn,
        )  # fmt: skip

    given, expected = fixed(raising), fixed(shifted)
    walk, seen = iter(given.with_info()), []
    while len(seen) < COUNT // 2:
        with contextlib.suppress(OSError):
            seen.append(next(walk)[1])
    assert seen == [info for _, info in expected.with_info()]


def test_packed_batches_count_what_their_samples_have() -> None:
    given = loader(cost, label_tokens="batch", layout="packed")
    counted = sum(info.label_tokens for _, info in given.with_info())
    assert counted == sum(map(count, map(Texts().__getitem__, range(COUNT))))
    given.close()


def test_classes_are_no_label_tokens() -> None:
    def classes(samples: list[Any]) -> dict[str, Any]:
        return {"labels": torch.tensor([len(sample["input_ids"]) for sample in samples])}

    given = DataLoader(
        Unlabelled(), balance=Balance("fixed"), batch_size=4, shuffle=True, ranks=Ranks(virtual=2),
        cost=cost, collate_fn=classes,
    )  # fmt: skip
    assert given.state_dict()["label_tokens"] == ""
