"""The steps of loops over random streams: each sample once, equal numbers, ends together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.loader.step.errors import LoaderError
from counterpoise.loader.streams.loop import StreamStart, at_step
from tests.loader.streams.simulated import BUDGET, Setting, run

SETTINGS = [
    Setting(
        number, ranks, workers, 1 + number % 3,
        takes_empty=number % 4 > 0, on_error="skip" if number % 5 == 0 else "raise",
    )
    for number in range(100)
    for ranks in range(1, 5)
    for workers in range(4)
]  # fmt: skip


def sample_keys(parts):
    return {
        f"{part.name}/{number}"
        for rank in parts
        for part in rank
        for number in range(len(part.lengths))
        if number not in part.broken
    }


def check(setting):
    parts = setting.samples()
    rest = any(len(part.lengths) for rank in parts for part in rank)
    is_starved = not all(any(part.lengths for part in rank) for rank in parts)
    if not setting.takes_empty and is_starved and rest:
        return  # refused: see test_a_rank_without_samples
    came = run(setting.loops(parts))
    keys = [key for rank in came for facts, _ in rank for key in facts.keys]
    assert len(keys) == len({*keys})
    assert {*keys} == sample_keys(parts)
    lengths = {
        f"{part.name}/{n}": length for rank in parts for part in rank for n, length in
        enumerate(part.lengths)
    }  # fmt: skip
    for rank in came:
        for facts, pack in rank:
            total = sum(lengths[key] for key in facts.keys)
            assert total <= BUDGET or len(facts.keys) == 1
            assert facts.weights.samples == len(facts.keys)
            assert facts.weights.label_tokens == total - len(facts.keys)
            if facts.keys:
                assert pack.batch["input_ids"].shape == (1, total)
    places = [[(facts.step, facts.microbatch) for facts, _ in rank] for rank in came]
    assert all(each == places[0] for each in places)  # equal numbers, and ends at the same step
    assert len(places[0]) % setting.accumulate == 0
    for at in range(len(places[0])):
        whole = {tuple(vars_of(rank[at][0].weights))[4:] for rank in came}
        assert len(whole) == 1
    holes = {facts.step_holes for rank in came for facts, _ in rank}
    left_out = {hole for each in holes for hole in each}
    assert len(left_out) == sum(len(part.broken) for rank in parts for part in rank)
    told = [hole.key for rank in came for facts, _ in rank for hole in facts.holes]
    assert len(told) == len({*told}) == len(left_out)


def vars_of(weights):
    return [getattr(weights, name) for name in weights.__struct_fields__]


@pytest.mark.parametrize("number", range(100))
def test_each_sample_comes_once_and_ranks_end_together(number):
    of_number = SETTINGS[number * 16 : number * 16 + 16]
    check(of_number[(number * 7 + 5) % 16])


@pytest.mark.long
@pytest.mark.parametrize("number", range(100))
def test_each_sample_comes_once_with_all_ranks_and_workers(number):
    for setting in SETTINGS[number * 16 : number * 16 + 16]:
        check(setting)


def seen(came):
    return [
        [(facts.step, facts.microbatch, facts.keys, vars_of(facts.weights)) for facts, _ in rank]
        for rank in came
    ]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.integers(1, 3), st.integers(0, 2), st.integers(1, 3), st.data())
def test_a_run_goes_on_exactly_where_it_was(number, ranks, workers, accumulate, data):
    setting = Setting(number, ranks, workers, accumulate, on_error="skip")
    parts = setting.samples()
    came = run(setting.loops(parts))
    if not came[0]:
        return
    at = data.draw(st.integers(0, len(came[0]) - 1))
    starts = []
    for rank in came:
        facts = rank[at][0]
        before, following = facts.after
        is_last = facts.microbatch == accumulate - 1
        step = (facts.step + 1, 0) if is_last else (facts.step, facts.microbatch + 1)
        starts.append(StreamStart(0, at_step(*step), stream=following if is_last else before))
    # In new processes: nothing is there of the first run.
    again = run(setting.loops(setting.samples()), starts)
    assert seen(again) == [rank[at + 1 :] for rank in seen(came)]


def test_with_drop_last_a_step_that_not_all_ranks_fill_ends_the_epoch():
    setting = Setting(3, 3, 2, 2, drop_last=True)
    parts = setting.samples()
    came = run(setting.loops(parts))
    assert all(facts.keys for rank in came for facts, _ in rank)
    assert len({len(rank) for rank in came}) == 1


def test_a_rank_without_samples_that_cannot_make_an_empty_batch_is_an_error():
    setting = Setting(0, 2, 0, takes_empty=False)
    parts = setting.samples()
    parts[0][0].lengths, parts[1][0].lengths = [10, 20], []
    for loop in range(2):  # on all ranks, at the same step
        with pytest.raises(LoaderError, match="rank 1 has no sample in its stream, others have"):
            run(setting.loops(parts)[:: 1 - 2 * loop])


def test_a_rank_at_its_end_gets_a_batch_of_a_real_sample_that_weighs_nothing():
    setting = Setting(0, 2, 0, takes_empty=False)
    parts = setting.samples()
    parts[0][0].lengths, parts[1][0].lengths = [90] * 3, [90]
    came = run(setting.loops(parts))
    ends = [(facts.weights.samples, pack.batch["input_ids"].numel()) for facts, pack in came[1]]
    assert ends == [(1, 90), (0, 90), (0, 90)]
    assert [facts.weights.step_samples for facts, _ in came[1]] == [2, 1, 1]


def test_what_is_read_again_on_resume_is_little_more_than_the_window():
    setting = Setting(0, 1, 0)
    parts = setting.samples()
    parts[0][0].lengths = [10 + number % 40 for number in range(1000)]
    came = run(setting.loops(parts))
    facts = came[0][100][0]
    parts[0][0].read.clear()
    again = run(setting.loops(parts), [StreamStart(0, at_step(101), stream=facts.after[1])])
    assert len(again[0]) == len(came[0]) - 101
    taken = sum(len(f.keys) for f, _ in came[0][:101])
    assert taken - parts[0][0].read[0] < 256
