"""`balance="auto"`: one argument changed, and the same samples in each step."""

import logging
import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader
from tests.loader.auto import auto_data as data
from tests.loader.auto.auto_data import flat, make, numbers


def _numbers(count: int) -> Any:
    return range(count)


def _states() -> list[Any]:
    drawn: Any = np.random.get_state()
    return [random.getstate(), drawn[1].tolist(), torch.get_rng_state().tolist()]


def line(caplog: pytest.LogCaptureFixture) -> str:
    (found,) = [
        r.getMessage()
        for r in caplog.records
        if r.name.endswith("automatic") and r.levelno == logging.INFO
    ]
    return found


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "counterpoise.loader.automatic")
    return caplog


def test_each_step_has_the_samples_of_torchs_loader_and_microbatches_their_size() -> None:
    loader = make(data.Texts(203), balance=Balance("auto", accumulate=4), ranks=Ranks(virtual=2))
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        found = numbers(loader)
        reference: DistributedSampler[Any] = DistributedSampler(_numbers(203), 1, 0)
        reference.set_epoch(epoch)
        order = list(reference)
        for step in range(3):
            mine = found[step * 8 : step * 8 + 8]
            assert [len(each) for each in mine] == [8] * 8
            assert sorted(flat(mine)) == sorted(order[step * 64 : step * 64 + 64])
        # 11 samples are left: one in each of the 8 microbatches, and three stay out.
        assert [len(each) for each in found[24:]] == [1] * 8
        assert len(loader) == len(found) == 32


def test_padded_batches_are_planned_as_count_times_longest(said: Any) -> None:
    dataset = data.Texts(256)
    loader = make(dataset, balance=Balance("auto", accumulate=4), ranks=Ranks(virtual=4))
    plain = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=data.pad)

    def cost(batches: Any) -> int:
        sizes = [batch["input_ids"].numel() for batch in batches]
        return sum(max(sizes[k : k + 4]) for k in range(0, len(sizes), 4))

    torch.manual_seed(0)
    assert cost(loader) <= 0.65 * cost(plain)
    text = line(said)
    assert "tokens (input_ids); tokens padded; step 0." in text
    assert "for 4 ranks x 4 microbatches" in text
    warning = [r.getMessage() for r in said.records if r.levelno == logging.WARNING]
    assert len(warning) == 1
    assert "cp.scale_loss(loss_sum, info).backward()" in warning[0]


def test_free_counts_leave_a_quarter_of_the_waiting_at_most() -> None:
    dataset = data.Texts(256)
    balance = Balance("auto", accumulate=4, counts="free")
    loader = make(dataset, balance=balance, ranks=Ranks(virtual=4))
    plain = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=data.pad)

    def waiting(batches: Any) -> float:
        sizes = np.array([batch["input_ids"].numel() for batch in batches]).reshape(-1, 4)
        return float(1 - sizes.mean() / sizes.max(axis=1).mean())

    torch.manual_seed(0)
    assert waiting(loader) <= waiting(plain) / 4


def test_packed_batches_are_planned_as_sums(said: Any) -> None:
    dataset = data.Texts(256, labels=False)
    loader = make(
        dataset, balance=Balance("auto", accumulate=4), ranks=Ranks(virtual=4), collate_fn=data.join
    )
    plain = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=data.join)

    def waiting(batches: Any) -> float:
        sizes = np.array([batch["input_ids"].numel() for batch in batches]).reshape(-1, 4)
        return float(1 - sizes.mean() / sizes.max(axis=1).mean())

    torch.manual_seed(0)
    assert waiting(loader) < waiting(plain) / 4
    assert "tokens add up" in line(said)
    assert not [r for r in said.records if r.levelno == logging.WARNING]


def test_a_window_evens_out_single_microbatches_that_add_up() -> None:
    def waiting(mode: Any) -> float:
        loader = make(
            data.Texts(256), balance=Balance("auto", mode=mode), ranks=Ranks(virtual=4),
            collate_fn=data.join, batch_size=2,
        )  # fmt: skip
        found = [(b["input_ids"].numel(), b["number"]) for b in loader]
        assert sorted(n for _, some in found for n in some) == list(range(256))
        assert {len(some) for _, some in found} == {2}
        sizes = np.array([size for size, _ in found]).reshape(-1, 4)
        return float(1 - sizes.mean() / sizes.max(axis=1).mean())

    assert waiting("window") < waiting("exact")


def test_workers_change_nothing() -> None:
    dataset = data.Texts(70)
    balance = Balance("auto", accumulate=2)
    loaders = [
        make(dataset, balance=balance, num_workers=n, ranks=Ranks(virtual=2)) for n in (0, 2)
    ]
    found = [numbers(loader) for loader in loaders]
    assert found[0] == found[1]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1]
    assert '"padded":["tokens"]' in states[0]["auto"]


def test_costs_that_the_data_say_are_taken_from_them(said: Any) -> None:
    reference = make(data.Texts(128), balance=Balance("auto", accumulate=2), ranks=Ranks(virtual=2))
    expected = numbers(reference)
    for dataset, more in (
        (data.Probed(128), {}),
        (data.Texts(128), {"cost": {"tokens": [data.Texts(1).length(k) for k in range(128)]}}),
        (data.Texts(128), {"cost": lambda sample: {"tokens": len(sample["input_ids"])}}),
    ):
        said.clear()
        loader = make(
            dataset, balance=Balance("auto", accumulate=2), ranks=Ranks(virtual=2), **more
        )
        found = numbers(loader)
        assert line(said).startswith('balance="auto": tokens; tokens padded; step 0.')
        assert sorted(flat(found)) == list(range(128))
        assert found == expected


def test_where_nothing_varies_the_reference_order_comes(said: Any) -> None:
    dataset = data.Texts(41, equal=True)
    loader = make(dataset, num_workers=1)
    order = list(DistributedSampler(_numbers(41), 1, 0, seed=0))
    assert flat(numbers(loader)) == order
    text = line(said)
    assert "nothing in the samples varies in size; microbatches of 8 in the reference order" in text
    torch_batches = make(dataset, balance=None, shuffle=False, sampler=order)
    assert numbers(loader) != []
    loader.set_epoch(0)
    assert numbers(loader) == numbers(torch_batches)
    two = make(dataset, ranks=Ranks(virtual=2))
    # row by row, and the last nine in two microbatches of four: one stays out
    assert flat(numbers(two)) == order[:40]
    assert two.step_info is not None


def test_the_trainers_generators_are_not_touched(capfd: pytest.CaptureFixture[str]) -> None:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = _states()
    loader = make(data.Drawing(40), collate_fn=data.pad_noisily, num_workers=1)
    assert len(loader) == 5
    assert _states() == before


def test_the_line_is_on_standard_error_where_no_logging_is_set_up(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)
    assert len(make(data.Texts(40))) == 5
    assert capfd.readouterr().err.startswith('balance="auto": tokens (input_ids); tokens padded;')


def test_one_microbatch_a_step_says_what_would_gain(said: Any) -> None:
    assert len(make(data.Texts(64), ranks=Ranks(virtual=2))) == 8
    assert "one padded microbatch a step of equal counts cannot gain" in line(said)


def test_free_counts_let_microbatches_differ_and_keep_the_last_samples(said: Any) -> None:
    balance = Balance("auto", accumulate=2, counts="free")
    loader = make(data.Texts(67), balance=balance, ranks=Ranks(virtual=2))
    found, infos = [], []
    for batch, info in loader.with_info():
        found.append(batch["number"])
        infos.append(info)
    assert len({len(each) for each in found[:8]}) > 1
    counted = [numbers[: info.samples] for numbers, info in zip(found, infos, strict=True)]
    assert sorted(flat(counted)) == list(range(67))
    # three samples for four microbatches: the fourth has a real sample that weighs nothing
    assert sorted(info.samples for info in infos[8:]) == [0, 1, 1, 1]
    empty = next(k for k in range(8, 12) if infos[k].samples == 0)
    assert len(found[empty]) == 1
    assert infos[empty].label_tokens == 0
    assert "stay out" not in line(said)


def test_in_the_datas_order_nothing_is_left_out() -> None:
    loader = make(
        data.Texts(67), shuffle=False, balance=Balance("auto", accumulate=2), ranks=Ranks(virtual=2)
    )
    found = numbers(loader)
    assert sorted(flat(found[:4])) == list(range(32))
    assert sorted(flat(found)) == list(range(67))
    assert sorted(map(len, found[8:])) == [1, 2]
    assert len(loader) == len(found) == 10


def test_what_stays_out_is_said_at_the_start_and_not_again(said: Any) -> None:
    loader = make(data.Texts(67), balance=Balance("auto", accumulate=2), ranks=Ranks(virtual=2))
    assert len(flat(numbers(loader))) == 66
    assert "the last 1 of 67 samples of each epoch stay out" in line(said)
    assert not [r for r in said.records if "left out" in r.getMessage()]
    dropped = make(
        data.Texts(67),
        balance=Balance("auto", accumulate=2),
        ranks=Ranks(virtual=2),
        drop_last=True,
    )
    assert len(flat(numbers(dropped))) == 64


def test_costs_whose_sums_were_not_seen_leave_the_reference_order(said: Any) -> None:
    loader = make(data.Pictures(240), collate_fn=data.pad_both, ranks=Ranks(virtual=4))
    found = [batch.shape for batch in loader]
    order = list(DistributedSampler(_numbers(240), 1, 0, seed=0))
    plain = DataLoader(data.Pictures(240), batch_size=8, sampler=order, collate_fn=data.pad_both)
    # the last 16 of 240 are microbatches of four
    assert found[:28] == [batch.shape for batch in plain][:28]
    assert "elements not recognised in the batches, and left alone" in line(said)
    assert "in the reference order; if you know what batches are, say work=" in line(said)


def test_numbers_of_arrays_are_called_elements_of_their_field(said: Any) -> None:
    frames = [{"images": torch.zeros(1 + n * n % 13, 6, 8)} for n in range(128)]
    next(iter(make(frames, collate_fn=joined_images, ranks=Ranks(virtual=4))))
    assert re.search("largest microbatch [0-9,]+ elements of images", line(said))


def joined_images(samples: Any) -> Any:
    return torch.cat([sample["images"] for sample in samples])


def test_budgets_of_what_was_not_recognised_are_refused() -> None:
    balance = Balance("auto", budgets={"elements": 10**6})
    loader = make(data.Pictures(240), collate_fn=data.pad_both, balance=balance)
    with pytest.raises(
        ValueError, match=r'elements not recognised.*Balance\("auto", work="padded"'
    ):
        next(iter(loader))


def warnings_of(said: Any) -> list[str]:
    return [r.getMessage() for r in said.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize("counts", ["equal", "free"])
@pytest.mark.parametrize(
    "make_data",
    [
        lambda: (data.Probed(128, labels=False), {}),
        lambda: (data.Texts(128, labels=False), {"cost": {"tokens": data.lengths(128)}}),
        lambda: (data.Texts(128, labels=False), {}),
        lambda: (data.Words(128), {}),
    ],
    ids=["probe", "table", "ids", "text"],
)
def test_equal_counts_of_padded_tokens_warn_though_no_label_is_counted(
    make_data: Any, counts: Any, said: Any
) -> None:
    dataset, more = make_data()
    balance = Balance("auto", accumulate=2, counts=counts)
    collate = data.pad_words if isinstance(dataset, data.Words) else data.pad
    next(iter(make(dataset, balance=balance, collate_fn=collate, **more)))
    found = [each for each in warnings_of(said) if "weighs the tokens of short samples" in each]
    assert len(found) == (counts == "equal")


def test_padded_pictures_of_one_class_each_warn_of_no_tokens(said: Any) -> None:
    next(iter(make(data.Rows(128), balance="auto", collate_fn=data.pad_rows)))
    assert "0 padded" in line(said)
    assert not warnings_of(said)


@pytest.mark.parametrize(
    ("hides", "is_printed"),
    [
        (lambda: logging.getLogger().setLevel(logging.WARNING), True),
        (lambda: logging.getLogger().setLevel(logging.INFO), False),
        (lambda: logging.getLogger("counterpoise").setLevel(logging.ERROR), False),
        (lambda: logging.disable(logging.INFO), False),
    ],
    ids=["program of warnings", "program of all", "ours silenced", "all silenced"],
)
def test_the_line_is_seen_where_a_program_logs_warnings_alone(
    hides: Any, is_printed: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    root, ours = logging.getLogger(), logging.getLogger("counterpoise")
    before = root.level, ours.level, root.manager.disable
    handler = logging.NullHandler()
    root.addHandler(handler)
    try:
        hides()
        loader = make(data.Texts(40), ranks=Ranks(virtual=2))
        assert len(loader) == len(loader)
    finally:
        root.removeHandler(handler)
        root.setLevel(before[0])
        ours.setLevel(before[1])
        logging.disable(before[2])
    lines = capfd.readouterr().err.count('balance="auto": tokens')
    assert lines == is_printed


def test_the_line_says_what_its_numbers_are_of(said: Any) -> None:
    next(iter(make(data.Words(128), collate_fn=data.pad_words)))
    assert "characters of text instead of" in line(said)
