"""Cost profiles: JSON there and back, linear in the resources, from shapes as from numbers."""

import json

import pytest

from counterpoise.sched import check, schedule, simulate, with_step_end
from counterpoise.sched.shapes.layers import (
    Device,
    TransformerLayer,
    Vocabulary,
    optimizer_ns,
    vit_layer,
)
from counterpoise.sched.shapes.model_profile import ModelShape, shape_profile
from counterpoise.sched.simulation.cost_profile import (
    CostProfile,
    Linear,
    dump_profile,
    load_profile,
    profile_costs,
)

MODEL = ModelShape(
    TransformerLayer(4096, 14336, 3, 2048),
    32,
    Vocabulary(4096, 128256),
    encoder=vit_layer(1024),
    encoder_layers=24,
    encoder_tokens=1025,
)


def microbatch(tokens: int, tiles: int) -> dict[str, int]:
    return {"tokens": tokens, "token_pairs": tokens**2, "tiles": tiles}


@pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (4, 1), (4, 2), (8, 3)])
def test_a_profile_reads_as_it_was_written(ranks: int, chunks: int) -> None:
    profile = shape_profile(MODEL, ranks=ranks, chunks=chunks)
    assert load_profile(dump_profile(profile)) == profile


def test_shapes_count_operations_as_the_formula_does() -> None:
    tokens, hidden = 2048, 3072
    per_layer = 24 * tokens * hidden**2 + 4 * tokens**2 * hidden
    assert TransformerLayer(hidden).forward_flops(tokens=tokens, pairs=tokens**2) == per_layer
    assert Vocabulary(hidden, 1000).forward_flops(tokens) == 2 * tokens * hidden * 1000
    assert (
        TransformerLayer(4096, 14336, 3, 2048).parameters == 218103808
    )  # Llama 3 8B, norms left out


def test_the_stages_take_together_what_the_model_takes() -> None:
    profile = shape_profile(MODEL, ranks=4, chunks=2)
    costs = profile_costs(profile, [microbatch(4096, 4)])
    total = sum(row[0] for row in costs.pass_ns["F"])  # type: ignore[union-attr,misc,index]
    flops = 32 * MODEL.layer.forward_flops(tokens=4096, pairs=4096**2)
    flops += MODEL.vocabulary.forward_flops(4096)
    assert MODEL.encoder is not None
    flops += 24 * 4 * MODEL.encoder.forward_flops(tokens=1025, pairs=1025**2)
    assert total == pytest.approx(Device().compute_ns(flops), rel=1e-4)


def test_parameters_are_all_held_somewhere() -> None:
    profile = shape_profile(MODEL, ranks=4)
    assert MODEL.encoder is not None
    count = 32 * MODEL.layer.parameters + 24 * MODEL.encoder.parameters
    count += 2 * MODEL.vocabulary.parameters
    assert sum(profile.parameter_bytes) == 18 * count


def test_tensor_parallel_ranks_share_work_and_pay_for_it() -> None:
    alone = shape_profile(MODEL, ranks=4)
    shared = shape_profile(
        ModelShape(MODEL.layer, 32, MODEL.vocabulary, tensor_parallel=4), ranks=4
    )
    no_encoder = shape_profile(ModelShape(MODEL.layer, 32, MODEL.vocabulary), ranks=4)
    one, four = (
        profile_costs(p, [microbatch(4096, 0)]).pass_ns["F"][0][0]  # type: ignore[index]
        for p in (no_encoder, shared)
    )
    assert one / 4 < four < one
    assert sum(shared.parameter_bytes) * 4 == pytest.approx(sum(no_encoder.parameter_bytes))
    assert sum(alone.parameter_bytes) > sum(no_encoder.parameter_bytes)


def test_a_microbatch_costs_what_its_resources_cost() -> None:
    profile = shape_profile(MODEL, ranks=4)
    few, many = profile_costs(profile, [microbatch(1024, 1), microbatch(4096, 9)]).pass_ns["F"][0]  # type: ignore[index,misc]
    assert few < many
    program = schedule("1f1b", ranks=4, microbatches=8)
    alike = profile_costs(profile, [microbatch(4096, 4)] * 8)
    uneven = profile_costs(profile, [microbatch(4096, 8 * (m % 2)) for m in range(8)])
    assert simulate(program, uneven).makespan_ns > simulate(program, alike).makespan_ns


def test_the_optimizer_is_bound_by_memory() -> None:
    assert optimizer_ns(Device(memory_bytes_per_s=30 * 10**9), 10**9) == 10**9


def test_a_resource_that_is_not_said_is_asked_for() -> None:
    with pytest.raises(ValueError, match="the microbatch does not say its tiles; it has tokens"):
        Linear(0, {"tiles": 1}).of({"tokens": 5})


GOOD = {"ranks": 2, "placement": [0, 1], "passes": {"F": [{"fixed": 1}], "B": [{"fixed": 2}]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passes": {"F": [{"fixed": 1}] * 3}}, "F: costs of 3 stages; give all 2, or 1"),
        ({"passes": {"F": [{"fixed": -1}]}}, "costs of F: got -1; give numbers of 0 or more"),
        ({"passes": {"F": [{"fixed": 1.5}]}}, "costs of F: got 1.5; give whole numbers"),
        ({"passes": {"F": [{"fixed": float("nan")}]}}, "the profile has NaN; give whole numbers"),
        ({"passes": {"F": {"fixed": 1}}}, "F: give a list of costs"),
        ({"passes": {"F": [{"slope": 1}]}}, "F: a cost has 'slope'"),
        ({"placement": ["a"]}, "placement: got .*; give whole numbers of 0 or more"),
        ({"p2p_ns": -5}, "p2p_ns: got -5"),
        ({"collectives": {"CS": -5}}, "collective CS: got -5"),
        ({"parameter_bytes": [1, 2, 3]}, "parameter_bytes: 3 entries for 2 ranks"),
        ({"gpus": 8}, "the profile has 'gpus'; known are"),
        ({"placement": None}, "placement: got None"),
    ],
)
def test_a_wrong_profile_is_one_clear_line(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_profile(json.dumps(GOOD | change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"ranks": 1}'])
def test_what_is_not_a_profile_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="profile"):
        load_profile(text)


def test_a_profile_of_too_many_stages_is_refused() -> None:
    entries = (Linear(3),) * 3
    profile = CostProfile(3, (0, 1, 2), {"F": entries, "B": entries})
    with pytest.raises(ValueError, match="got a table of 3x1"):
        simulate(schedule("gpipe", ranks=2, microbatches=1), profile_costs(profile, [{}]))


def test_the_end_of_a_step_takes_its_time_on_every_rank() -> None:
    profile = shape_profile(
        ModelShape(MODEL.layer, 32, MODEL.vocabulary, data_parallel=8), ranks=4, chunks=2
    )
    program = schedule("interleaved", ranks=4, microbatches=8)
    whole = with_step_end(program)
    check(whole)
    costs = profile_costs(profile, [microbatch(4096, 0)] * 8)
    before, after = (simulate(p, costs).ranks for p in (program, whole))
    for rank in range(4):
        reduce = sum(profile.passes["REDUCE_GRAD"][s].fixed for s in program.stages_of(rank))
        step = profile.passes["O"][rank].fixed
        assert min(reduce, step) > 0
        assert after[rank][-1].end_ns == before[rank][-1].end_ns + reduce + step
    with pytest.raises(ValueError, match="add it only once"):
        with_step_end(whole)
