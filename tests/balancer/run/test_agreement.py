"""Ranks that begin a run at different positions are told so, all alike."""

from typing import Any

from hypothesis import given, strategies as st

from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.run.run import describe_start_mismatch, pack_start
from counterpoise.balancer.run.tasks import RunStart

numbers = st.integers(0, 3)
starts = st.builds(
    RunStart,
    epoch=numbers,
    at=st.builds(EpochPosition, numbers, numbers, numbers, numbers, st.sampled_from(["", "a"])),
    costs=st.sampled_from(["", "a", "b"]),
    stream=st.none(),
)


@given(ranks=st.lists(starts, min_size=1, max_size=4))
def test_ranks_are_apart_unless_all_begin_alike(ranks: list[Any]) -> None:
    begin_alike = len({(each.epoch, each.at, each.costs) for each in ranks}) == 1
    assert (describe_start_mismatch([pack_start(each) for each in ranks]) == "") == begin_alike


def test_other_costs_of_a_pipeline_are_named() -> None:
    at = EpochPosition(0, 0, 0, 0, "")
    packed = [pack_start(RunStart(0, at, costs=costs)) for costs in ("1f1b", "other")]
    mismatch = describe_start_mismatch(packed)
    assert "rank 1 by others than rank 0: call follow_costs() on all" in mismatch
