"""What encoders work on, as edges say it, and what does not fit together."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch import nn

from counterpoise.sched import Pass, Program, parse_program, problems, schedule
from counterpoise.sched.runtime.compiled import Value
from counterpoise.sched.runtime.encoders.part import (
    EncoderPart,
    rank_encoders,
    refuse_without_backward,
    trained_program,
)
from counterpoise.sched.runtime.encoders.placement import (
    EncoderPlacement,
    EncoderSpec,
    place_encoders,
)
from counterpoise.sched.runtime.encoders.routes import EncoderRoutes, find_joints, find_routes
from counterpoise.sched.runtime.parts import Joint
from counterpoise.sched.transforms.training import (
    drop_encoder_backward,
    with_reductions,
    with_whole_last_backward,
)
from tests.sched.runtime.encoders.models import encoded

TEXT = """
placement: 0 1
microbatches: 2
edges: 0EF_B0->1EF_A0 0EF_B1->1EF_A1
edges: 1EF_B0->0F1 1EF_B1->0F0
edges: 0B1->1EB_B0 0B0->1EB_B1
edges: 1EB_A0->0EB_B0 1EB_A1->0EB_B1
0: 0EF_A0 0EF_B0 0EF_A1 0EF_B1 0F0 0F1 0B0 0B1 0EB_B1 0EB_A1 0EB_B0 0EB_A0
1: 1EF_A0 1EF_B0 1EF_A1 1EF_B1 1F0 1F1 1B0 1B1 1EB_B1 1EB_A1 1EB_B0 1EB_A0
"""


def routes_of(program: Program, layers: list[int]) -> EncoderRoutes:
    return find_routes(program, place_encoders(program, layers))


def test_edges_say_which_microbatch_an_encoder_works_on_and_what_they_carry() -> None:
    program = parse_program(TEXT)
    assert not problems(program)
    routes = routes_of(program, [4])
    assert routes.number == {0: 1, 1: 0}
    assert routes.features == {(0, m): Value("X_EF_B", 1, m) for m in (0, 1)}
    assert routes.gradients == {Value("X_B", 0, 0): (0,), Value("X_B", 0, 1): (0,)}
    names = ("X_EF_B", 0), ("X_EF_B", 1), ("X_EB_A", 0), ("X_EB_A", 1)
    stage = {"X_EF_B": 0, "X_EB_A": 1}
    assert routes.hidden == {Value(name, stage[name], m): 0 for name, m in names}
    # Nobody wants the gradient of the pixels.
    assert routes.with_input_gradient == {
        p for p in routes.backward if (p.stage, p.kind) != (0, "EB_A")
    }


def test_every_rank_of_a_pipeline_runs_its_share_of_each_encoder() -> None:
    program = encoded("1f1b", 4, 8, width=2, layers=(2, 1))
    placement = place_encoders(program, [4, 2])
    assert (placement.share, placement.position) == ((2, 1), {0: 0, 1: 1, 2: 0, 3: 1})
    places = [placement.layer(Pass(3, kind, 0)) for kind in ("EF_A", "EB_B", "EF_C")]
    assert [(p.encoder, p.number) for p in places] == [(0, 2), (0, 3), (1, 1)]
    assert [(p.lowest, p.highest) for p in places] == [(True, False), (False, True), (True, True)]


def test_gradients_of_several_encoders_leave_a_backward_as_one_value() -> None:
    program = encoded("zb-h1", 2, 2, layers=(1, 1))
    placement = place_encoders(program, [1, 1])
    both = find_routes(program, placement).gradients
    assert both == {Value("X_I", 0, 0): (0, 1), Value("X_I", 0, 1): (0, 1)}
    left = trained_program(program, placement, [None, 0])
    assert find_routes(left, placement).gradients == dict.fromkeys(both, (1,))
    joint = find_joints(left, placement, ["vision", "audio"])[0, 0]
    assert joint == Joint(("vision", "audio"), ("X_EF_A", "X_EF_B"), (False, True))


def test_layers_below_the_first_that_is_trained_have_no_backward() -> None:
    program = encoded("1f1b", 4, 8, width=2, layers=(2,))
    placement = place_encoders(program, [4])
    left = trained_program(program, placement, [1])
    assert not problems(left)
    backward = {item for row in program.ranks for item in row if item.kind.startswith("EB")}
    kept = {item for row in left.ranks for item in row if item.kind.startswith("EB")}
    assert {(p.stage % 2, p.kind) for p in backward - kept} == {(0, "EB_A")}
    # The layer that is trained does not compute a gradient of its input.
    wanted = find_routes(left, placement).with_input_gradient
    assert {(p.stage % 2, p.kind) for p in wanted} == {(1, "EB_A"), (1, "EB_B")}


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_a_frozen_encoder_has_no_backward_and_no_gradient_is_sent_to_it(name) -> None:
    program = drop_encoder_backward(encoded(name, 4, 8, width=2, layers=(3,)))
    assert not problems(program)
    kinds = {item.kind for row in program.ranks for item in row}
    assert kinds >= {"EF_A", "EF_C"}
    assert not any(kind.startswith("EB") for kind in kinds)
    assert {edge.source.kind for edge in program.edges} == {"EF_C"}


def test_features_gradients_come_from_a_last_backward_that_is_made_whole() -> None:
    program = with_whole_last_backward(encoded("zb-h1", 2, 4), [0])
    assert not problems(program)
    back = [edge.source for edge in program.edges if edge.source.kind in "BI"]
    assert sorted(map(str, back)) == ["0B3", "0I0", "0I1", "0I2"]


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ("0EF0->0F0", "0EF1 leads to no F; add an edge"),
        ("0EF0->0F0 0EF1->0F0", "0F0 gets features from 0EF0 and from 0EF1"),
        ("0EF0->0F0 0EF0->0F1", "microbatch 0 is 0 and 1 of the language model"),
        ("0EF0->0EF1 0EF1->0F0", "the edge 0EF0->0EF1 leads neither from a layer"),
    ],
)
def test_edges_that_say_nothing_useful_are_refused(edges, message) -> None:
    program = parse_program(f"placement: 0\nmicrobatches: 2\nedges: {edges}\n0: 0EF0 0EF1 0F0 0F1")
    with pytest.raises(ValueError, match=message):
        find_routes(program, EncoderPlacement((1,), {0: 0}))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([2], "rank 0 runs 2 encoder layers in the schedule; encoders of 2 layers in pipelines of"),
        ([3], "encoders of 3 layers do not divide into pipelines of 2 ranks"),
        ([], "give an EncoderSpec for each encoder of this schedule"),
    ],
)
def test_encoders_that_do_not_fit_the_program_are_refused(layers, message) -> None:
    with pytest.raises(ValueError, match=message):
        place_encoders(parse_program(TEXT), layers)


def test_encoders_without_passes_are_refused() -> None:
    program = schedule("1f1b", ranks=2, microbatches=2)
    with pytest.raises(ValueError, match="'1f1b' has no encoder passes; fill it with some"):
        place_encoders(program, [1])


def test_an_f_without_one_of_the_encoders_features_is_refused() -> None:
    program = encoded("1f1b", 2, 2, layers=(1, 1))
    edges = tuple(edge for edge in program.edges if edge.source != Pass(1, "EF_B", 1))
    left, placement = replace(program, edges=edges), place_encoders(program, [1, 1])
    with pytest.raises(ValueError, match="0F0 gets no features of audio; add an edge"):
        find_joints(left, placement, ["vision", "audio"])


def test_layers_that_are_missing_or_cannot_be_trained_are_refused() -> None:
    program = drop_encoder_backward(parse_program(TEXT))
    layers = [nn.Linear(1, 1), nn.Linear(1, 1), None, None]
    spec = EncoderSpec("vision", layers, tokens={"tiles": 1}, width=1)

    def refuse(spec: EncoderSpec, rank: int) -> None:
        refuse_without_backward(EncoderPart(program, rank_encoders([spec], program, rank)))

    with pytest.raises(ValueError, match=r"layer 0 of the encoder 'vision' is trained, but the"):
        refuse(spec, 0)
    with pytest.raises(ValueError, match="runs layer 2 of the encoder 'vision' on this rank; give"):
        refuse(spec, 1)
    refuse(EncoderSpec("vision", layers, tokens={"tiles": 1}, width=1, trainable=False), 0)


def test_tokens_are_counted_by_costs_or_by_a_function() -> None:
    info = SimpleNamespace(costs={"tiles": 3, "clips": 2})
    both = EncoderSpec("both", [nn.Identity()], tokens={"tiles": 256, "clips": 10}, width=8)
    assert both.features_spec(info).shape == (788, 8)
    own = EncoderSpec("own", [nn.Identity()], tokens=lambda info: info.costs["clips"], width=8)
    assert own.count(info) == 2
    assert own.count(SimpleNamespace(empty=True, costs={})) == 0
    with pytest.raises(ValueError, match=r"counts its tokens by clips, the microbatch's costs are"):
        both.count(SimpleNamespace(costs={"tiles": 1}))


def test_every_stage_is_reduced_once_after_its_passes() -> None:
    row = "0: 0UNSHARD 0F0 1F0 1B0 0B0"
    text = f"placement: 0 0\nmicrobatches: 1\n{row} 0REDUCE_GRAD"
    (found,) = with_reductions(parse_program(text)).ranks
    assert [str(item) for item in found if item.kind == "REDUCE_GRAD"] == [
        "1REDUCE_GRAD",
        "0REDUCE_GRAD",
    ]
    early = parse_program(text.replace("0B0 0REDUCE_GRAD", "0REDUCE_GRAD 0B0"))
    with pytest.raises(ValueError, match="0REDUCE_GRAD comes before 0B0; put it after it"):
        with_reductions(early)
