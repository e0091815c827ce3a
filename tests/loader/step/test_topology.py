"""Ranks are found in torch.distributed, by group or topology, when they are first needed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from counterpoise.loader import Balance, BalancedBatchSampler, Topology
from counterpoise.loader.step.ranks import Place, Ranks, as_ranks, as_topology
from counterpoise.sched.runtime import Units, UnitSize


@pytest.fixture
def join() -> Iterator[Any]:
    """Return what makes this process one of a job's, without the others."""

    def joined(rank: int, world: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)

    yield joined
    if dist.is_initialized():
        dist.destroy_process_group()


def seats(dims: dict[str, int], **more: Any) -> list[tuple[int, int]]:
    """Return (data-parallel rank, number among those that share it) of each global rank."""
    topology, world = Topology(dims, **more), 1
    for size in dims.values():
        world *= size
    found = [topology.seat(rank, world) for rank in range(world)]
    assert len({(seat.played[0], seat.sharer) for seat in found}) == world
    assert {(seat.ranks * seat.sharers, len(seat.members)) for seat in found} == {(world, world)}
    return [(seat.played[0], seat.sharer) for seat in found]


def test_the_last_dimension_varies_fastest() -> None:
    assert seats({"dp": 2, "tp": 2}) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert seats({"dp": 2, "cp": 2}) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert seats({"pp": 2, "dp": 2}) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_both_dimensions_of_hsdp_get_different_samples() -> None:
    assert seats({"dp_replicate": 2, "dp_shard": 2}) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert seats({"dp_replicate": 2, "dp_shard": 1, "cp": 1, "tp": 2})[3] == (1, 1)


def test_dimensions_of_other_names_must_be_told() -> None:
    with pytest.raises(ValueError, match="along ep get different samples: give Topology"):
        Topology({"dp": 2, "ep": 2})
    assert seats({"x": 2, "y": 2}, data=("y",)) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    with pytest.raises(ValueError, match="data names z, but the dimensions are dp"):
        Topology({"dp": 2}, data=("z",))


@pytest.mark.parametrize("rank", range(4))
def test_a_device_mesh_says_the_same_as_its_sizes(rank: int, join: Any) -> None:
    join(rank, 4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    found = Ranks(mesh).find()
    assert found == Ranks({"pp": 2, "dp": 2}).find()
    assert found == Place((rank % 2,), 2, rank // 2, 2, members=(0, 1, 2, 3))


def test_a_mesh_needs_names(join: Any) -> None:
    join(0, 4)
    with pytest.raises(ValueError, match="needed is a DeviceMesh with mesh_dim_names"):
        Ranks(init_device_mesh("cpu", (4,)))
    with pytest.raises(ValueError, match="dp 2 x tp 4 are 8 processes, but the job has 4"):
        Ranks({"dp": 2, "tp": 4}).find()


def test_process_group_is_the_data_parallel_one_as_in_ddp(join: Any) -> None:
    join(2, 4)
    assert Ranks().find() == Place((2,), 4, members=(0, 1, 2, 3))
    group, other = dist.new_group([0, 2]), dist.new_group([1, 3])
    assert Ranks(group).find() == Place((1,), 2, members=(0, 2))
    with pytest.raises(ValueError, match="global rank 2 and is not in the process group"):
        Ranks(other).find()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"of": (2, 2)}, "of 2 ranks, rank may be 0 to 1"),
        ({"of": (2,)}, r"give \(rank, number of ranks\), such as \(3, 8\)"),
        ({"of": 8}, r"write ranks=\(rank, 8\) .* or ranks=Ranks\(virtual=8\)"),
        ({"of": (0, 2), "virtual": 2}, "leave one of them"),
        ({"virtual": 0}, "virtual is 0, needed is a positive integer"),
        ({"of": {"dp": 2}, "virtual": 2}, "leave one of them"),
        ({"of": {"dp": 0}}, "size of dp is 0"),
        ({"of": "dp"}, "ranks is 'dp': needed is a DeviceMesh"),
    ],
)
def test_arguments_that_contradict_are_refused_at_once(arguments: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Ranks(**arguments)


def test_what_says_a_rank_is_short_for_it() -> None:
    assert as_ranks({"dp": 2}) == Ranks(Topology({"dp": 2}))
    assert as_ranks(None) == Ranks()
    assert as_ranks(Ranks(virtual=2)) == Ranks(virtual=2)


UNITS = Units(backbone=UnitSize(dp=2, pp=2), encoder=UnitSize(dp=1, pp=2))


def test_ranks_of_encoders_play_all_data_parallel_ranks() -> None:
    found = [as_topology(UNITS).seat(rank, 6) for rank in range(6)]
    assert [seat.played for seat in found] == [(0,), (0,), (1,), (1,), (0, 1), (0, 1)]
    # the seats of a replica's program, so that no two processes of an index have the same
    assert [seat.sharer for seat in found] == [0, 1, 0, 1, 2, 3]
    assert {(seat.ranks, seat.sharers) for seat in found} == {(2, 4)}


def test_processes_of_a_rank_get_the_same_data_parallel_index() -> None:
    units = Units(backbone=UnitSize(dp=2, pp=1, tp=2), encoder=UnitSize(dp=2, pp=1))
    found = [as_topology(units).seat(rank, 6) for rank in range(6)]
    assert [seat.played for seat in found] == [(0,), (0,), (1,), (1,), (0, 1), (0, 1)]
    assert [seat.sharer for seat in found] == [0, 1, 0, 1, 2, 3]
    assert {(seat.ranks, seat.sharers) for seat in found} == {(2, 4)}
    with pytest.raises(ValueError, match="the units have 6 processes, but the job has 3"):
        as_topology(units).seat(0, 3)


def test_units_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="the units have 6 processes, but the job has 4"):
        as_topology(UNITS).seat(0, 4)


def test_units_that_get_whole_microbatches_are_told_to_spread_images() -> None:
    with pytest.raises(ValueError, match="get whole microbatches: give Units spread=True"):
        Ranks(UNITS).check_dispatch("images")
    spread = replace(UNITS, encoder=UnitSize(dp=2, pp=1), spread=True)
    Ranks(spread).check_dispatch("images")


def test_a_sampler_lists_the_samples_of_one_rank(join: Any) -> None:
    join(2, 3)
    units = Units(backbone=UnitSize(dp=2, pp=1), encoder=UnitSize(dp=1, pp=1))
    sampler = BalancedBatchSampler({"tokens": [1] * 8}, Balance(samples_per_step=4), ranks=units)
    with pytest.raises(ValueError, match="works for data-parallel ranks 0, 1, and a sampler"):
        next(iter(sampler))
