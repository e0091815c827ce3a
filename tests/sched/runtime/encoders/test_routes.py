"""What encoders work on, as edges say it, and what does not fit together."""

import pytest
from torch import nn

from counterpoise.sched import Pass, parse_program, problems
from counterpoise.sched.runtime.compiled import (
    Value,
    with_reductions,
    with_whole_last_backward,
    without_encoder_backward,
)
from counterpoise.sched.runtime.encoders import EncoderLayers, EncoderPart, find_routes
from tests.sched.runtime.encoders.models import encoded, features

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


def test_edges_say_which_microbatch_an_encoder_works_on_and_what_they_carry() -> None:
    program = parse_program(TEXT)
    assert not problems(program)
    routes = find_routes(program)
    assert routes.number == {0: 1, 1: 0}
    assert routes.features == {
        Value("X_EF_B", 1, 0): 1,
        Value("X_EF_B", 1, 1): 0,
        Value("X_B", 0, 0): 0,
        Value("X_B", 0, 1): 1,
    }
    assert routes.hidden == {
        Value("X_EF_B", 0, 0): 1,
        Value("X_EF_B", 0, 1): 0,
        Value("X_EB_A", 1, 0): 1,
        Value("X_EB_A", 1, 1): 0,
    }
    assert routes.entries == {Pass(0, "EF_A", 0), Pass(0, "EF_A", 1)}
    # Nobody wants the gradient of the pixels.
    assert routes.wanted == {p for p in routes.backward if (p.stage, p.kind) != (0, "EB_A")}


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_a_frozen_encoder_has_no_backward_and_no_gradient_is_sent_to_it(name) -> None:
    program = without_encoder_backward(encoded(name, 4, 8, width=2, layers=3))
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
    ],
)
def test_edges_that_say_nothing_useful_are_refused(edges, message) -> None:
    program = parse_program(f"placement: 0\nmicrobatches: 2\nedges: {edges}\n0: 0EF0 0EF1 0F0 0F1")
    with pytest.raises(ValueError, match=message):
        find_routes(program)


def test_layers_that_do_not_fit_the_program_are_refused() -> None:
    program = parse_program(TEXT)
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"rank 1 has the encoder layers \[0\], the schedule runs"):
        EncoderPart(program, 1, EncoderLayers({0: one}, features))
    with pytest.raises(ValueError, match="encoder layer 0 of rank 1 is trained, but the schedule"):
        EncoderPart(without_encoder_backward(program), 1, EncoderLayers({0: one, 1: two}, features))


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
