"""Cost profiles: JSON there and back, costs as functions of the resources, profiles of shapes."""

import json

import pytest

from counterpoise.sched import check, schedule, simulate, with_step_end
from counterpoise.sched.simulation.cost_profile import (
    CostFunction,
    CostProfile,
    dump_profile,
    load_profile,
    profile_costs,
)

PROFILE = CostProfile(
    (0, 1, 2, 3),
    {
        "F": (CostFunction(5, {"tokens": 2000, "tiles": 90_000}),),
        "B": tuple(CostFunction(9 * n, {"tokens": 4000}) for n in range(4)),
        "REDUCE_GRAD": (CostFunction(300),),
        "O": tuple(CostFunction(70 + n) for n in range(4)),
    },
    buffers={"activation": (CostFunction(0, {"tokens": 7000}),)},
    parameter_bytes=(1, 2, 3, 4),
)


def microbatch(tokens: int, tiles: int) -> dict[str, int]:
    return {"tokens": tokens, "token_pairs": tokens**2, "tiles": tiles}


def test_a_profile_reads_as_it_was_written() -> None:
    assert load_profile(dump_profile(PROFILE)) == PROFILE


def test_a_microbatch_costs_what_its_resources_cost() -> None:
    few, many = profile_costs(PROFILE, [microbatch(1024, 1), microbatch(4096, 9)]).pass_ns["F"][0]  # type: ignore[index,misc]
    assert few < many
    program = schedule("1f1b", ranks=4, microbatches=8)
    alike = profile_costs(PROFILE, [microbatch(4096, 4)] * 8)
    uneven = profile_costs(PROFILE, [microbatch(4096, 8 * (m % 2)) for m in range(8)])
    assert simulate(program, uneven).makespan_ns > simulate(program, alike).makespan_ns


def test_an_amount_that_the_microbatch_lacks_is_named() -> None:
    for needs in (CostFunction(0, {"tiles": 1}), CostFunction(points={"tiles": ((0, 0), (1, 5))})):
        with pytest.raises(ValueError, match="no amount of 'tiles'; it has tokens"):
            needs.evaluate({"tokens": 5})


def test_an_entry_may_combine_fixed_costs_rates_and_points() -> None:
    """Integers, rounded down; outside the points the nearest piece goes on, never below 0."""
    profile = load_profile(
        """{"placement": [0, 1], "passes": {
        "F": [{"fixed": 5, "per_thousand": {"tiles": 3400, "tokens": 100}},
              {"fixed": 1, "points": {"tokens": [[10, 100], [20, 400], [23, 401]]}}],
        "B": [{"fixed": 7}]}}"""
    )
    microbatches = [{"tiles": 3, "tokens": tokens} for tokens in (4, 10, 15, 21, 30)]
    assert profile_costs(profile, microbatches).pass_ns == {
        "F": [[15, 16, 16, 17, 18], [1, 101, 251, 401, 404]],
        "B": [[7] * 5, [7] * 5],
    }


def test_only_placement_and_passes_are_required() -> None:
    profile = load_profile('{"placement": [0, 2, 1], "passes": {"F": [{}]}}')
    assert profile.ranks == 3
    assert load_profile(dump_profile(profile)) == profile
    assert profile_costs(profile, [{}]).pass_ns == {"F": [[0]] * 3}


GOOD = {"ranks": 2, "placement": [0, 1], "passes": {"F": [{"fixed": 1}], "B": [{"fixed": 2}]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passes": {"F": [{}] * 3}}, "the cost profile: F: got 3 costs; give all 2, or one"),
        ({"passes": {"F": [{}], "B": [{"fixed": -1}]}}, r"passes.B\[0\].fixed is -1; .* int >= 0"),
        ({"passes": {"F": [{"fixed": 1.5}]}}, r"passes.F\[0\].fixed is 1.5; expected int"),
        ({"passes": {"F": [{"fixed": True}]}}, r"passes.F\[0\].fixed is true; expected int"),
        ({"passes": {"F": [{"fixed": 2**63}]}}, r"passes.F\[0\].fixed is 9223372036854775808"),
        ({"passes": {"F": [{"fixed": float("nan")}]}}, "the cost profile is not JSON: it has NaN"),
        ({"passes": {"F": {"fixed": 1}}}, 'passes.F is {"fixed": 1}; expected array'),
        ({"passes": [1]}, r"passes is \[1\]; expected object"),
        (
            {"passes": {"F": [{"slope": 1}]}},
            r"passes.F\[0\] has the unknown field slope; known are fixed, per_thousand, points",
        ),
        (
            {"buffers": {"logits": [{}, {"per_thousand": {"tiles": 1, "tokens": "2"}}]}},
            r'buffers.logits\[1\].per_thousand.tokens is "2"; expected int',
        ),
        (
            {"passes": {"F": [{"points": {"a": [[1, 2], [1]]}}]}},
            r"passes.F\[0\].points.a\[1\] is \[1\]; expected array of length 2",
        ),
        (
            {"passes": {"F": [{"points": {"a": [[1, 2]]}}]}},
            r"passes.F\[0\]: points of a are \[\[1, 2\]\]; give two or more .*, amounts rising",
        ),
        ({"passes": {"F": [{"points": {"a": [[1, 2], [1, 3]]}}]}}, "amounts rising"),
        ({"placement": ["a"]}, r'placement\[0\] is "a"; expected int'),
        ({"placement": None}, "placement is null; expected array"),
        ({"placement": []}, "placement is empty; give the rank of each stage"),
        ({"placement": [0, 2]}, "placement has a stage on rank 2; there are 2 ranks"),
        ({"p2p_ns": -5}, "p2p_ns is -5"),
        ({"collectives": {"CX": 1, "CS": -5}}, "collectives.CS is -5"),
        ({"parameter_bytes": [1, 2, 3]}, "parameter_bytes: got 3 entries; give all 2 ranks', or"),
        ({"gpus": 8}, "it has the unknown field gpus; known are placement, passes, ranks"),
    ],
)
def test_a_wrong_profile_is_one_clear_line(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_profile(json.dumps(GOOD | change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"ranks": 1}'])
def test_what_is_not_a_profile_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the cost profile"):
        load_profile(text)


def test_a_profile_of_too_many_stages_is_refused() -> None:
    entries = (CostFunction(3),) * 3
    profile = CostProfile((0, 1, 2), {"F": entries, "B": entries})
    with pytest.raises(ValueError, match="got a table of 3x1"):
        simulate(schedule("gpipe", ranks=2, microbatches=1), profile_costs(profile, [{}]))


def test_the_end_of_a_step_takes_its_time_on_every_rank() -> None:
    program = schedule("1f1b", ranks=4, microbatches=8)
    whole = with_step_end(program)
    check(whole)
    costs = profile_costs(PROFILE, [microbatch(4096, 0)] * 8)
    before, after = (simulate(p, costs).ranks for p in (program, whole))
    for rank in range(4):
        assert after[rank][-1].end_ns == before[rank][-1].end_ns + 300 + 70 + rank
    with pytest.raises(ValueError, match="add it only once"):
        with_step_end(whole)
