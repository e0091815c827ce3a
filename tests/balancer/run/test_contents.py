"""What a step's microbatches hold: all usable samples, none of them twice, weighed right."""

from collections import Counter
from itertools import chain

from hypothesis import given, strategies as st

from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.planning.problem.empty_cells import fill_empty
from counterpoise.balancer.planning.problem.shapes import Sizing
from counterpoise.balancer.run.steps import make_contents, usable_cells
from tests.balancer.run.plans import costs_of, feed, plans, take, values


@st.composite
def filled(draw: st.DrawFn) -> dict[tuple[int, int], list[int]]:
    """Return some microbatches' ordinals."""
    ranks, rows = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    cells, next_ordinal = {}, 0
    for rank in range(ranks):
        for row in range(rows):
            size = draw(st.integers(0, 4))
            cells[rank, row] = [*range(next_ordinal, next_ordinal + size)]
            next_ordinal += size
    return cells


@given(cells=filled())
def test_no_microbatch_is_empty_where_there_are_enough_samples(
    cells: dict[tuple[int, int], list[int]],
) -> None:
    before = {cell: [*own] for cell, own in cells.items()}
    moved = fill_empty(cells)
    total = sum(map(len, before.values()))
    assert (moved is None) == (total < len(before))
    if moved is None:
        assert cells == before
        return
    assert all(cells.values())
    assert Counter(chain(*cells.values())) == Counter(chain(*before.values()))
    for cell, own in before.items():
        if own:  # who has samples keeps some of them, and gets none
            assert {*cells[cell]} <= {*own}
        else:
            assert len(cells[cell]) == 1
    for ordinal, giver, cell in moved:
        assert ordinal in before[giver]
        assert cells[cell] == [ordinal]


@given(plan=plans, costs=values, data=st.data())
def test_weights_are_of_usable_samples(
    plan: PlanConfig, costs: list[int], data: st.DataObject
) -> None:
    for step in take(feed(plan, costs_of(costs)))[:3]:
        everything = sorted(step.all_ordinals())
        holes = {*step.refused, *data.draw(st.sets(st.sampled_from(everything)))}
        cells = usable_cells(step, holes, True)
        assert cells is not None
        found = make_contents(step, cells, range(plan.ranks), label=0, sizing=Sizing())
        usable = [each for each in everything if each not in holes]
        assert sorted(chain(*(each.ordinals for each in found.values()))) == usable
        tokens = step.find_costs(usable)[:, 0].sum() if usable else 0
        for (rank, _), each in found.items():
            own = [one for (r, _), one in found.items() if r == rank]
            weights = each.weights
            assert weights.samples == len(each.ordinals)
            assert (weights.label_tokens,) == each.costs
            assert weights.rank_samples == sum(len(one.ordinals) for one in own)
            assert weights.rank_label_tokens == sum(one.costs[0] for one in own)
            assert (weights.step_samples, weights.step_label_tokens) == (len(usable), tokens)


@given(plan=plans, costs=values)
def test_without_holes_the_plan_stays_where_microbatches_may_be_empty(
    plan: PlanConfig, costs: list[int]
) -> None:
    for step in take(feed(plan, costs_of(costs))):
        cells = usable_cells(step, (), True)
        assert cells == {
            (r, m): microbatch.ordinals
            for r, rank in enumerate(step.batch.ranks)
            for m, microbatch in enumerate(rank)
        }
        filled = usable_cells(step, (), False)
        if all(cells.values()):
            assert filled == cells
        else:
            assert filled is None or all(filled.values())
