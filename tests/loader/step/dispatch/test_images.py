"""Images that travel train what one process trains: loss, gradients and weights."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from counterpoise.loader import ImageDispatch, LoaderError
from tests.loader.step.dispatch.training import (
    PIXELS,
    WIDTH,
    Case,
    Encoder,
    Images,
    dispatch,
    groups,
    inputs,
    train_alone,
    train_rank,
)
from tests.sched.runtime.pool import Pool

# Of two ranks' microbatches; one rank without images, some microbatches without, one of nobody.
TWO: Images = [[[1] * 5, [], [1] * 2], [[1], [], []]]
FOUR: Images = [[[1] * 7, [1]], [[], []], [[1], []], [[1] * 2, [1] * 3]]
PICTURES: Images = [
    [[(1, 2, 2), (1, 4, 2)], [4]],
    [[], []],
    [[(1, 2, 6)], []],
    [[], [(3, 2, 4), (1, 2, 2)]],
]
# Cases of four ranks are as those of two with more to exchange: they are for `make test-all`.
CASES = {
    "two ranks": Case(TWO),
    "two ranks, a round each": Case(TWO, together=1),
    "two ranks, summed": Case(TWO, reduction="sum"),
    "two ranks, frozen": Case(TWO, frozen=True),
    "two ranks, whole pictures": Case(PICTURES[2:], sized=True),
    "two ranks, one image": Case([[[], []], [[], [1]]]),
    "four ranks": Case(FOUR),
    "four ranks, a round each, summed": Case(FOUR, together=1, reduction="sum"),
    "four ranks, frozen": Case(FOUR, frozen=True),
    "four ranks, whole pictures": Case(PICTURES, sized=True),
    "two ranks, rounds of two": Case(TWO, together=2),
    "no images at all": Case([[[], []], [[], []]]),
    "one image for four": Case([[[]], [[1]], [[]], [[]]]),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=pytest.mark.long if len(case.images) == 4 else ())
        for name, case in CASES.items()
    ],
)
def test_a_step_trains_what_one_process_trains(pool: Pool, case: Case) -> None:
    alone = train_alone(case)
    for rank, found in enumerate(pool.run(train_rank, case)):
        assert found.loss == pytest.approx(alone.loss, rel=1e-5)
        for name, expected in _with_zeros(case, alone.gradients, found.gradients).items():
            torch.testing.assert_close(found.gradients[name], expected, rtol=1e-5, atol=1e-5)
        for name, expected in alone.weights.items():
            torch.testing.assert_close(found.weights[name], expected, rtol=1e-5, atol=1e-5)
        assert [sum(one) for one in found.loads] == [sum(one) for one in found.whole], rank


def _with_zeros(
    case: Case, expected: dict[str, Tensor], found: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return the gradients, zeros where one process has none, as without images; check frozen."""
    assert case.frozen == (not any(name.startswith("encoder") for name in found))
    return {name: expected.get(name, torch.zeros_like(found[name])) for name in found}


def test_ranks_encode_as_much_as_the_plan_says(pool: Pool) -> None:
    found = pool.run(_encoded, Case(FOUR))
    assert [rows for rows, _ in found] == [4, 3, 3, 4]
    assert [loads for _, loads in found] == [[(4, 3, 3, 4)]] * 4


def _encoded(rank: int, case: Case) -> tuple[int, list[tuple[int, ...]]]:
    """Return the rows that a rank's encoder was given, and what the step says of all ranks."""
    encoder, rows = Encoder(), []
    images = dispatch(case, encoder, groups(4)[0])
    step = images.step(inputs(case, rank)[0])
    hook = encoder.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    with torch.no_grad():
        step.features(0)
    hook.remove()
    # The blank image comes first, from which shapes are known.
    for number in range(2):
        step.features(number).sum().backward()
    step.backward()
    return sum(rows) - 1, step.loads


def test_ranks_that_disagree_all_raise(pool: Pool) -> None:
    for found in pool.run(_disagree):
        assert found == [
            "the ranks have 1, 2 microbatches in this step",
            "the encoder is trained, but not on ranks 1",
        ]


def _disagree(rank: int) -> list[str]:
    encoder, said = Encoder(), []
    images = dispatch(Case([]), encoder, groups(2)[rank // 2])
    with pytest.raises(ValueError, match="microbatches") as caught:
        images.step([None] * (1 + rank % 2))
    said.append(str(caught.value).split(":")[0])
    encoder.requires_grad_(rank % 2 == 0)
    with pytest.raises(ValueError, match="trained") as caught:
        images.step([None])
    said.append(str(caught.value).split(":")[0])
    return said


# One process, without torch.distributed, is a job of one rank.


def alone(**given: Any) -> ImageDispatch:
    return ImageDispatch(Encoder(), torch.zeros(1, *PIXELS), **given)


def test_one_process_needs_no_group() -> None:
    images = alone()
    step = images.step([torch.ones(2, *PIXELS), None])
    assert torch.equal(step.features(0), Encoder()(torch.ones(2, *PIXELS)))
    assert step.features(1).shape == (0, WIDTH)


def test_a_rank_that_does_not_come_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    images = alone()

    def wait(*_: Any, **__: Any) -> None:
        raise RuntimeError("Timed out waiting 1800000ms for recv operation to complete")

    monkeypatch.setattr(dist, "all_gather_object", wait)
    images._exchange.rank_count = 2
    said = r"rank 0 of 2 did not get the sizes of the images: a rank has ended.*\(Timed out"
    with pytest.raises(LoaderError, match=said):
        images.step([None])


def test_nothing_is_kept_without_gradients() -> None:
    images = alone()
    with torch.no_grad():
        for _ in range(2):
            step = images.step([torch.ones(1, *PIXELS)])
            assert not step.features(0).requires_grad
            assert step.is_over


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reduction": "max"}, "reduction is 'max', allowed are 'mean', 'sum'"),
        ({"together": 0}, "together is 0, allowed are positive numbers"),
        ({"blank_size": 3}, "blank has 1 rows, needed are the 3"),
    ],
)
def test_wrong_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        alone(**given)


@pytest.mark.parametrize(
    ("pixels", "sizes", "message"),
    [
        (torch.ones(1, 2, 2), None, r"rows of microbatch 0 are \(2, 2\)"),
        (torch.ones(1, *PIXELS, dtype=torch.uint8), None, "torch.uint8"),
        (torch.ones(1, *PIXELS, requires_grad=True), None, "does not travel back"),
        (torch.ones(1, *PIXELS), [[1]], "no blank_size"),
    ],
)
def test_pixels_that_do_not_fit_are_refused(pixels: Tensor, sizes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        alone().step([pixels], sizes)


def test_sizes_must_be_those_of_the_rows() -> None:
    images = ImageDispatch(Encoder(), torch.zeros(4, *PIXELS), blank_size=4)
    with pytest.raises(ValueError, match=r"have \[2\] rows, got pixels of \[4\]"):
        images.step([torch.ones(4, *PIXELS)], [[2]])
    with pytest.raises(ValueError, match="needs the sizes"):
        images.step([torch.ones(4, *PIXELS)])


def test_steps_in_another_order_are_refused() -> None:
    images = alone(together=1)
    step = images.step([torch.ones(1, *PIXELS)] * 3)
    with pytest.raises(ValueError, match="microbatch 1 are not there"):
        step.features(1)
    features = step.features(0)
    with pytest.raises(RuntimeError, match="microbatch 0 have no gradient"):
        step.features(1)
    features.sum().backward()
    # Within a round it is the same tensor, whose gradients add up.
    assert step.features(0) is features
    step.features(1)
    with pytest.raises(ValueError, match="microbatch 0 were asked for before"):
        step.features(0)


def test_a_backward_that_is_left_out_is_told_of() -> None:
    images = alone(together=1)
    step = images.step([torch.ones(1, *PIXELS)] * 2)
    step.features(0).sum().backward()
    with pytest.raises(RuntimeError, match="round 2 of 2 were not asked for"):
        step.backward()
    with pytest.raises(RuntimeError, match="the step before has had no backward"):
        images.step([None])


def test_a_second_backward_is_told_of() -> None:
    step = alone().step([torch.ones(1, *PIXELS)])
    with pytest.raises(RuntimeError, match="round 1 of 1 were not asked for"):
        step.backward()
    step.features(0).sum().backward()
    step.backward()
    with pytest.raises(RuntimeError, match="has had its backward"):
        step.backward()


def test_encoders_that_make_other_features_are_refused() -> None:
    class Drifting(Encoder):
        def forward(self, rows: Tensor, sizes: Any = None) -> Tensor:
            found = super().forward(rows, sizes)
            return found if len(rows) == 1 else found[1:]

    with torch.no_grad():
        step = ImageDispatch(Drifting(), torch.zeros(1, *PIXELS)).step([torch.ones(2, *PIXELS)])
        with pytest.raises(ValueError, match=r"the encoder made \(3, 6\)"):
            step.features(0)


def test_wrapped_encoders_are_refused() -> None:
    class Sharded(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 1)
            self.weight.placements = ()  # type: ignore[attr-defined]

    with pytest.raises(ValueError, match="sharded with FSDP2"):
        ImageDispatch(Sharded(), torch.zeros(1, *PIXELS))
