"""Orders that follow measured costs: steps after a change are those of a plan with new costs."""

import json
from pathlib import Path
from typing import Any

import pytest

from counterpoise import Ranks
from counterpoise.loader import DataLoader
from counterpoise.loader.step.errors import LoaderError
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made

FIRST = [{"per_thousand": {"tiles": 9000}}, {"per_thousand": {"tokens": 1000, "token_pairs": 9}}]
# The second stage has become the slower one.
SECOND = [{"per_thousand": {"tokens": 90}}, {"per_thousand": {"tiles": 19000, "tokens": 40}}]
COUNT, STEP = 96, 16
STEPS = COUNT // STEP
# The costs change after this step.
CHANGE = 2
Delivered = list[tuple[int, int, int, tuple[str, ...]]]


def profile(forward: Any, placement: tuple[int, ...] = (0, 1)) -> str:
    return json.dumps({"placement": placement, "passes": {"F": forward}})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("costs") / "costs.json"
    path.write_text(profile(FIRST))
    (path.parent / "second.json").write_text(profile(SECOND))
    return path


class Measuring:
    """A pipeline whose costs change after a step."""

    def __init__(self, after: int = CHANGE, costs: str = profile(SECOND)) -> None:
        self.after, self.costs = after, costs
        self.trained: tuple[int, int] | None = None

    def measured_costs(self) -> tuple[str, tuple[int, int] | None]:
        late = self.trained is not None and self.trained >= (0, self.after)
        return self.costs if late else profile(FIRST), self.trained


def make(file: Path, workers: int = 0, pipe: Any = None, **changes: Any) -> DataLoader[Any, Any]:
    given: dict[str, Any] = {
        "grouping": "balanced", "samples_per_step": STEP, "accumulate": 4,
        "ranks": Ranks(virtual=2), "shuffle": True, "collate_fn": made.as_list,
        "num_workers": workers, "ordering": "two_opt", "pipeline": str(file),
    }  # fmt: skip
    loader = balanced_loader(made.Augmented(COUNT), **{**given, **changes})
    if pipe is not None:
        loader.follow_costs(pipe)
    return loader


def take(loader: DataLoader[Any, Any], pipe: Measuring | None = None, most: int = 99) -> Delivered:
    """Return what comes in at most so many steps; each is trained on before the next one."""
    found: Delivered = []
    for step in loader.steps():
        found += [(info.epoch, info.step, info.rank, tuple(info.keys)) for info in step.infos]
        if pipe is not None:
            pipe.trained = step.infos[0].epoch, step.number
        if len({each[:2] for each in found}) == most:
            break
    return found


@pytest.fixture(scope="module")
def expected(file: Path) -> Delivered:
    """Return the order by the first costs up to the change, and by the second ones from then on."""
    first, second = (take(make(path)) for path in (file, file.parent / "second.json"))
    changed = [one for one in second if one[1] > CHANGE]
    assert changed != [one for one in first if one[1] > CHANGE]
    return [one for one in first if one[1] <= CHANGE] + changed


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_all_steps_after_a_change_are_ordered_by_the_new_costs(
    file: Path, expected: Delivered, workers: int
) -> None:
    pipe = Measuring()
    loader = make(file, workers, pipe)
    assert take(loader, pipe) == expected
    again = take(loader, pipe)
    loader.close()
    second = make(file.parent / "second.json")
    second.set_epoch(1)
    assert again == take(second)


def test_without_a_change_nothing_is_planned_again(file: Path) -> None:
    pipe = Measuring(after=99)
    given = take(make(file))
    assert take(make(file, pipe=pipe), pipe) == given
    # With replan="off" a pipeline has no costs to follow.
    off = Measuring(after=0, costs="")
    off.trained = 0, 0
    assert take(make(file, pipe=off), off) == given


@pytest.mark.parametrize("saved_after", [1, CHANGE, 4])
def test_a_resumed_job_has_the_same_orders(
    file: Path, expected: Delivered, saved_after: int
) -> None:
    pipe = Measuring()
    loader = make(file, pipe=pipe)
    take(loader, pipe, saved_after + 1)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = make(file, pipe=pipe)
    resumed.load_state_dict(state)
    rest = take(resumed, pipe)
    assert rest == [one for one in expected if one[1] > saved_after]


def test_the_ledger_has_a_digest_of_the_costs(file: Path) -> None:
    pipe = Measuring()
    loader, second = make(file, pipe=pipe), make(file.parent / "second.json")
    digests = []
    for step in loader.steps():
        pipe.trained = 0, step.number
        digests.append(loader.state_dict()["digest"])
    first = make(file).state_dict()["digest"]
    wanted = [first if n <= CHANGE else second.state_dict()["digest"] for n in range(STEPS)]
    assert digests == wanted


def test_in_a_window_only_the_order_changes(file: Path) -> None:
    pipe = Measuring()
    budgets = {"tiles": 12, "tokens": 120}
    window: dict[str, Any] = {"mode": "window", "budgets": budgets}
    found = take(make(file, pipe=pipe, **window), pipe)
    second = take(make(file.parent / "second.json", **window))
    first = take(make(file, **window))
    assert first != second
    assert found == [one for one in first if one[1] <= CHANGE] + [
        one for one in second if one[1] > CHANGE
    ]


def test_fetching_ahead_of_training_is_an_error_where_costs_change(file: Path) -> None:
    pipe = Measuring()
    loader = make(file, pipe=pipe)
    steps = loader.steps()
    for _ in range(5):
        next(steps)
    pipe.trained = 0, CHANGE
    with pytest.raises(LoaderError, match="changed after step 2, and step 5 is fetched already"):
        next(steps)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("begun", [False, True])
def test_a_change_that_is_interrupted_is_made_again(
    file: Path, expected: Delivered, workers: int, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = Measuring()
    loader = make(file, workers, pipe)
    balanced = loader._balanced
    assert balanced is not None
    source: Any = balanced.open()
    go_on, calls = source.go_on, []

    def interrupted(*given: Any) -> None:
        calls.append(given)
        if begun or len(calls) > 1:
            go_on(*given)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(source, "go_on", interrupted)
    found: Delivered = []
    steps = loader.steps()
    while (step := next_of(steps)) is not None:
        found += [(info.epoch, info.step, info.rank, tuple(info.keys)) for info in step.infos]
        pipe.trained = 0, step.number
    loader.close()
    assert len(calls) == 2
    assert found == expected


def next_of(steps: Any) -> Any:
    """Return the next step, None at the end; asked for again where an interrupt came between."""
    try:
        return next(steps, None)
    except KeyboardInterrupt:
        return next(steps, None)


def test_costs_that_do_not_fit_are_refused(file: Path) -> None:
    other = Measuring(costs=profile(FIRST, (1, 0)))
    with pytest.raises(ValueError, match=r"has stages on ranks \[1, 0\], the plan's pipeline on"):
        take(make(file, pipe=other), other)
    unknown = Measuring(costs=profile([{"per_thousand": {"frames": 3}}]))
    with pytest.raises(LoaderError, match=r"has measured: .* counts frames, but samples cost"):
        take(make(file, pipe=unknown), unknown)
    with pytest.raises(ValueError, match="orders microbatches for a pipeline: give"):
        make(file, pipe=other, ordering="given", pipeline=None).num_steps  # noqa: B018
    with pytest.raises(ValueError, match="needs a balanced loader"):
        DataLoader([1]).follow_costs(other)
