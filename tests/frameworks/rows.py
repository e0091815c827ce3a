"""The ways in which frameworks damaged loaders, measured once, each with the test that found it."""

from collections import Counter
from pathlib import Path

import pytest

from tests.frameworks.pool import Pool

CASES = "accelerate_cases"


def flat(ranks: list[list[list[int]]]) -> list[int]:
    return [number for batches in ranks for batch in batches for number in batch]


def test_a_plain_loader_is_sharded_by_accelerate_as_torchs_is(two: Pool) -> None:
    found = two.run(f"{CASES}:plain_prepared", count=96)
    assert sorted(flat([ours for ours, _, _ in found])) == list(range(96))
    for ours, theirs, is_ours in found:
        assert ours == theirs
        assert not is_ours


@pytest.mark.parametrize("count", [pytest.param(96, marks=pytest.mark.long), 91])
@pytest.mark.parametrize("kind", ["plain", "balanced"])
def test_an_evaluation_counts_every_sample_once(two: Pool, kind: str, count: int) -> None:
    for gathered in two.run(f"{CASES}:evaluated", kind=kind, count=count):
        assert Counter(gathered) == Counter(range(count))


def test_gradient_state_knows_the_loader_and_its_end(two: Pool) -> None:
    outside = (False, False, True)
    inside = [(True, False, False), (True, False, True)] * 3
    for found in two.run(f"{CASES}:gradient_state"):
        assert found == [outside, *inside, (True, False, False), (True, True, True), outside]


@pytest.mark.parametrize(("ours", "theirs", "right"), [(4, 1, False), (3, 2, False), (2, 2, True)])
def test_accumulation_is_checked_at_the_first_batch(
    one: Pool, ours: int, theirs: int, right: bool
) -> None:
    (error,) = one.run(f"{CASES}:accumulation_error", ours=ours, theirs=theirs)
    assert (error == "") is right
    assert right or f"gradient_accumulation_steps={ours}" in error


def test_batches_are_placed_on_the_device_of_accelerate(one: Pool) -> None:
    assert one.run(f"{CASES}:placed") == [("cpu", "meta")]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (4, 1, "give accumulate_grad_batches=4, or accumulate=1 to the Balance"),
        (2, 4, "give accumulate_grad_batches=2, or accumulate=4 to the Balance"),
        ("found", 2, "give accumulate_grad_batches=1, or accumulate=2 to the Balance"),
        ("auto", 1, "cp.loader.StepLoader(loader)"),
    ],
)
def test_lightnings_accumulation_is_checked_at_the_first_batch(
    one: Pool, ours: int | str, theirs: int, words: str
) -> None:
    (error,) = one.run("lightning_cases:accumulation_error", ours=ours, theirs=theirs)
    assert words in error


def test_lightnings_accumulation_is_not_that_of_other_loops(one: Pool) -> None:
    case = "lightning_cases:accumulation_error"
    assert one.run(case, ours=4, theirs=1, manual=True) == [""]
    (validated,) = one.run("lightning_cases:validated_while_accumulating")
    assert Counter(flat([validated])) == Counter(range(40))


@pytest.mark.parametrize("kind", ["window", "stream", "plain"])
def test_lightning_goes_on_exactly(one: Pool, kind: str, tmp_path: Path) -> None:
    """Of a loader without length it has a batch in reserve when it asks for the state.

    "plain" is a stream whose length is known, as docs/guides/lightning.md asks for.
    """
    ((whole, resumed),) = one.run("lightning_cases:went_on", kind=kind, folder=str(tmp_path))
    assert len(whole) > 6
    assert resumed == whole[3:]


OTHERS = ("lightning", 1), ("fabric", 1), ("fabric", 2)


@pytest.mark.parametrize(
    ("framework", "ranks"),
    [("lightning", 2), *[pytest.param(*each, marks=pytest.mark.long) for each in OTHERS]],
)
def test_lightning_and_fabric_evaluate_every_sample_once(
    one: Pool, two: Pool, framework: str, ranks: int
) -> None:
    pool = {1: one, 2: two}[ranks]
    found = pool.run("lightning_cases:evaluated", framework=framework, count=91)
    assert Counter(flat(found)) == Counter(range(91))


def test_a_plain_loader_that_is_made_again_keeps_its_options(two: Pool) -> None:
    expected = ("counterpoise.loader.dataloader", True)
    assert two.run("lightning_cases:skipping_kept") == [expected, expected]


def test_prepare_accelerate_gives_a_plain_loaders_samples_with_our_workers(
    two: Pool, tmp_path: Path
) -> None:
    for whole, expected, module, rest, resumed in two.run(
        f"{CASES}:kept", folder=str(tmp_path), count=91
    ):
        assert whole == expected
        assert module == "counterpoise.loader.dataloader"
        assert rest == resumed == whole[1:]


def test_prepare_accelerate_asks_for_no_state_that_nobody_saves(one: Pool, tmp_path: Path) -> None:
    ((batches, said),) = one.run(f"{CASES}:kept_without_state", folder=str(tmp_path))
    assert batches == 24
    assert "NoState cannot say where it is" in said


def test_prepare_accelerate_does_not_shard_a_balanced_batch_sampler_again(two: Pool) -> None:
    found = two.run(f"{CASES}:sampler_kept")
    assert all(ours == prepared for ours, prepared in found)
    assert sorted(flat([prepared for _, prepared in found])) == list(range(96))
