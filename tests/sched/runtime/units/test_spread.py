"""Encoders whose replicas share the images of each microbatch, beside one process."""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from counterpoise.sched import schedule
from counterpoise.sched.runtime import EncoderSpec, Units, UnitSize
from counterpoise.sched.runtime.encoders.spread import part_rows, part_specs, split_encoder
from tests.sched.runtime.encoders.models import make_model
from tests.sched.runtime.encoders.processes import loader_step
from tests.sched.runtime.pool import Pool
from tests.sched.runtime.units.processes import UnitSetting, make_pipe, run_units, samples_of

TOLERANCE = 1e-6


def setting(
    name: str,
    backbone: tuple[int, ...],
    encoder: tuple[int, ...],
    layers: tuple[int, ...] = (2,),
    frozen: tuple[int, ...] = (),
) -> UnitSetting:
    return UnitSetting(name, backbone, encoder, layers, frozen, spread=True, dtype=torch.float64)


SOME = (
    setting("1f1b", (1, 2), (2, 1)),
    setting("zbv", (2, 1), (2, 1)),
    setting("1f1b-alg2", (1, 2), (2, 1), (1,)),
    setting("1f1b", (1, 1), (3, 1), (2,), (0,)),
    setting("1f1b", (1, 1, 2), (2, 1)),
)


@pytest.mark.parametrize("case", SOME, ids=str)
def test_a_step_trains_what_one_process_trains(pool: Pool, case: UnitSetting) -> None:
    for rank, found in enumerate(pool.run(run_units, case, 2)):
        assert max(found.values()) <= TOLERANCE, (rank, found)


# Of five processes.
UNEVEN = (
    setting("1f1b", (2, 1), (3, 1)),
    setting("1f1b", (1, 4), (1, 1)),
    setting("interleaved", (1, 2), (3, 1)),
    setting("zbv", (2, 2), (1, 1)),
    setting("gpipe", (1, 1), (4, 1)),
)


@pytest.fixture(scope="module")
def five() -> Iterator[Pool]:
    made = Pool(5)
    yield made
    made.close()


@pytest.mark.long
@pytest.mark.parametrize("case", UNEVEN, ids=str)
def test_so_do_units_that_do_not_divide_each_other(five: Pool, case: UnitSetting) -> None:
    for rank, found in enumerate(five.run(run_units, case, 2)):
        assert max(found.values()) <= TOLERANCE, (rank, found)


def spec(tokens: int = 3, images: Any = MappingProxyType({"tiles": 1})) -> EncoderSpec:
    return EncoderSpec("vision", [nn.Identity()], {"tiles": tokens}, width=4, images=images)


def infos(*tiles: int) -> list[Any]:
    return [SimpleNamespace(costs={"tiles": n}) for n in tiles]


def images_of(tiles: Sequence[int], parts: int, replicas: int) -> list[list[int]]:
    """Return the images of each part, by microbatch."""
    found = part_specs(split_encoder([spec()], parts), infos(*tiles), replicas)
    assert all(one.shape[1:] == (4,) for each in found for one in each)
    return [[one.shape[0] // 3 for one in each] for each in found]


def test_each_replica_deals_its_images_in_turn() -> None:
    assert images_of((4, 0, 1, 3), 3, 1) == [[2, 1, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]
    # The second replica begins with the second part.
    assert images_of((1, 1), 2, 2) == [[1, 0], [0, 1]]


def test_no_part_has_more_than_an_image_of_a_replica_more() -> None:
    draw = random.Random(0)
    for parts, replicas in product((2, 3, 5), (1, 2, 3)):
        tiles = [draw.randint(0, 9) for _ in range(8 * replicas)]
        found = images_of(tiles, parts, replicas)
        assert [sum(each) for each in found] == tiles
        for replica in range(replicas):
            loads = [sum(column) for column in zip(*found[8 * replica :][:8], strict=True)]
            assert max(loads) - min(loads) <= 1


def test_nothing_is_known_of_microbatches_of_others() -> None:
    found = part_specs(split_encoder([spec()], 2), [None, *infos(4)], 2)
    assert [len(each) for each in found] == [0, 2]


def test_ranks_encode_what_the_parts_say(pool: Pool) -> None:
    case = setting("1f1b", (1, 2), (2, 1))
    tiles = sum(len(sample.pixels) for sample in samples_of(case, 0)[0])
    found = pool.run(encoded_rows, case)
    assert found[:2] == [0, 0]
    assert sum(found) == tiles
    assert abs(found[2] - found[3]) <= 1


def encoded_rows(rank: int, case: UnitSetting) -> int:
    """Return the rows that a rank's encoder gets in a step."""
    units, rows = case.units, [0]
    base = schedule(case.name, ranks=units.backbone.pp, microbatches=case.microbatches)
    model = make_model(case.layers, base.stages, case.dtype, merges=False)
    model.encoders[0][0].register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    pipe, _ = make_pipe(case, model, rank)
    every = samples_of(case, 0)
    pipe.step([loader_step(every[r], 1) for r in units.replicas(rank)])
    pipe.close()
    return sum(rows)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([spec(images=None)], "got 'vision' without images="),
        ([spec(), spec()], "of one encoder, and got 2 encoders"),
    ],
)
def test_encoders_that_cannot_be_spread_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_encoder(given, 2)


def test_images_that_are_not_alike_are_refused() -> None:
    parts = split_encoder([spec(images={"pictures": 1})], 2)
    with pytest.raises(ValueError, match="has 2 images and 9 features"):
        part_specs(parts, [SimpleNamespace(costs={"tiles": 3, "pictures": 2})], 1)
    with pytest.raises(ValueError, match="pixel_values has 7 rows, which do not divide"):
        part_rows(torch.ones(7, 1), "pixel_values", 0, 6, 12)
    with pytest.raises(ValueError, match="its pp is 2; give it pp 1"):
        Units(UnitSize(1, 1), UnitSize(2, 2), spread=True)
