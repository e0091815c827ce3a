"""worker_restarts of local loops: the batches stay, and only the deadly sample is named."""

from typing import Any

import pytest

from counterpoise import Balance, DataLoader, OnError
from counterpoise.loader import LoaderError
from tests.loader.restarts_data import COUNT, Deadly, Hanging, Killer

TABLE = {"tokens": [1 + n % 7 for n in range(COUNT)]}


def loader(data: Any, workers: int = 2, **given: Any) -> DataLoader[Any, Any]:
    balance = Balance(accumulate=2, samples_per_step=16)
    return DataLoader(
        data, shuffle=True, num_workers=workers, balance=balance, **({"cost": TABLE} | given)
    )


def rows(batches: Any) -> list[list[int]]:
    return [[int(row[0]) for row in batch] for batch in batches]


def measured(sample: Any) -> dict[str, int]:
    return {"tokens": 1 + int(sample[0]) % 7}


@pytest.mark.parametrize("cost", [TABLE, measured])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_batches_are_the_same_when_workers_are_killed(cost: Any, method: str) -> None:
    expected = rows(loader(Deadly(), workers=0))
    made = loader(
        Deadly(load_s=0.002),
        on_error=OnError(worker_restarts=9),
        cost=cost,
        multiprocessing_context=method,
    )
    iterator = iter(made)
    tasks: Any = made._balanced._connection._tasks
    killer = Killer(lambda: [worker.pid for worker in tasks._workers], 3, 1)
    killer.start()
    found = rows(iterator)
    killer.join()
    made.close()
    assert found == expected


@pytest.mark.parametrize("cost", [TABLE, measured])
def test_with_skip_the_sample_that_kills_three_is_a_hole(cost: Any) -> None:
    made = loader(Deadly(bad=17), on_error="skip", cost=cost)
    found, holes = list[int](), list[str]()
    for batch, info in made.with_info():
        found += [int(row[0]) for row in batch]
        holes += info.holes
        assert info.samples == len(batch)
    made.close()
    assert holes == ["17"]
    assert sorted(found) == [n for n in range(COUNT) if n != 17]


def test_no_sample_that_kills_takes_the_place_of_an_empty_microbatch() -> None:
    made = DataLoader(
        Deadly(bad=17), 1, shuffle=False, num_workers=2, balance="fixed", on_error="skip"
    )
    assert sorted(int(batch[0][0]) for batch in made) == [n for n in range(COUNT) if n != 17]
    made.close()


def test_without_it_the_third_death_ends_the_loop_and_names_the_sample() -> None:
    with pytest.raises(LoaderError, match="'17': 3 worker processes died"):
        list(loader(Deadly(bad=17), on_error=OnError(worker_restarts=5)))


@pytest.mark.parametrize("restarts", [0, 1])
def test_too_few_restarts_end_the_loop_as_torch_does(restarts: int) -> None:
    made = loader(Deadly(bad=17), on_error=OnError(worker_restarts=restarts))
    with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly"):
        list(made)
    made.close()


def test_who_hangs_and_on_which_sample_is_said() -> None:
    data = Hanging()
    made = DataLoader(data, 2, num_workers=2, balance="fixed", shuffle=False, timeout=0.5)
    iterator = iter(made)
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(TimeoutError, match=r"from worker \d \(pid \d+\), which works on sample 5$"):
        next(iterator)
    data.go_on.set()
    made.close()
