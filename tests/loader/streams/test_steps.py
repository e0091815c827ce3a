"""The steps of loops over random streams: each sample once, equal numbers, ends together."""

import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.loader.resume.balanced_position import START
from counterpoise.loader.step.errors import LoaderError
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
    keys = [key for rank in came for each in rank for key in each.batch.keys]
    assert len(keys) == len({*keys})
    assert {*keys} == sample_keys(parts)
    lengths = {
        f"{part.name}/{n}": length for rank in parts for part in rank for n, length in
        enumerate(part.lengths)
    }  # fmt: skip
    for rank in came:
        for arrival in rank:
            facts = arrival.batch
            total = sum(lengths[key] for key in facts.keys)
            assert total <= BUDGET or len(facts.keys) == 1
            assert facts.weights.samples == len(facts.keys)
            assert facts.weights.label_tokens == total - len(facts.keys)
            if facts.keys:
                assert arrival.loaded.batch["input_ids"].shape == (1, total)
    told_of = [[each.batch for each in rank] for rank in came]
    places = [[(facts.step, facts.microbatch) for facts in rank] for rank in told_of]
    assert all(each == places[0] for each in places)  # equal numbers, and ends at the same step
    assert len(places[0]) % setting.accumulate == 0
    for at in range(len(places[0])):
        whole = {tuple(vars_of(rank[at].weights))[4:] for rank in told_of}
        assert len(whole) == 1
    holes = {facts.step_holes for rank in told_of for facts in rank}
    left_out = {hole for each in holes for hole in each}
    assert len(left_out) == sum(len(part.broken) for rank in parts for part in rank)
    told = [hole.key for rank in told_of for facts in rank for hole in facts.holes]
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


def position_after(arrivals):
    """Return a rank's position after some microbatches."""
    position = START
    for arrival in arrivals:
        position = position.after(arrival, (arrival.batch.rank,))
    return position


def seen(came):
    facts = [[each.batch for each in rank] for rank in came]
    return [[(f.step, f.microbatch, f.keys, vars_of(f.weights)) for f in rank] for rank in facts]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.integers(1, 3), st.integers(0, 2), st.integers(1, 3), st.data())
def test_a_run_goes_on_exactly_where_it_was(number, ranks, workers, accumulate, data):
    setting = Setting(number, ranks, workers, accumulate, on_error="skip")
    parts = setting.samples()
    came = run(setting.loops(parts))
    if not came[0]:
        return
    at = data.draw(st.integers(0, len(came[0]) - 1))
    starts = [position_after(rank[: at + 1]).start(0, "") for rank in came]
    # In new processes: nothing is there of the first run.
    again = run(setting.loops(setting.samples()), starts)
    assert seen(again) == [rank[at + 1 :] for rank in seen(came)]


def test_with_drop_last_a_step_that_not_all_ranks_fill_ends_the_epoch():
    setting = Setting(3, 3, 2, 2, drop_last=True)
    parts = setting.samples()
    came = run(setting.loops(parts))
    assert all(each.batch.keys for rank in came for each in rank)
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
    weights = [each.batch.weights for each in came[1]]
    assert [each.loaded.batch["input_ids"].numel() for each in came[1]] == [90, 90, 90]
    assert [(each.samples, each.step_samples) for each in weights] == [(1, 2), (0, 1), (0, 1)]


def test_what_is_read_again_on_resume_is_little_more_than_the_window():
    setting = Setting(0, 1, 0)
    parts = setting.samples()
    parts[0][0].lengths = [10 + number % 40 for number in range(1000)]
    came = run(setting.loops(parts))
    parts[0][0].read.clear()
    again = run(setting.loops(parts), [position_after(came[0][:101]).start(0, "")])
    assert len(again[0]) == len(came[0]) - 101
    taken = sum(len(each.batch.keys) for each in came[0][:101])
    assert taken - parts[0][0].read[0] < 256
