"""Edges when a program runs: features reach the passes that wait for them, gradients come back."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from counterpoise.sched import Edge, Pass, Program, check, schedule
from counterpoise.sched.runtime.compiled import collectives, compile_program
from counterpoise.sched.runtime.execution.walk import Walker, walk
from counterpoise.sched.runtime.parts import Given, Made, MicrobatchData, StepData, TensorSpec
from tests.sched.runtime.loopback import Loopback

RANKS, MICROBATCHES = 3, 6


def encoded(name: str) -> Program:
    """Every rank encodes a third of the microbatches, for the first two stages.

    The language model takes the microbatches in the reverse of the encoders' order.
    """
    base = schedule(name, ranks=RANKS, microbatches=MICROBATCHES)
    back = "I" if any(item.kind == "I" for item in base.ranks[0]) else "B"
    rows, edges = [], []
    for rank, row in enumerate(base.ranks):
        own = range(rank, MICROBATCHES, RANKS)
        forward, backward = ([Pass(rank, kind, m) for m in own] for kind in ("EF", "EB"))
        rows.append((*forward, *row, *backward))
        for m, stage in itertools.product(own, (0, 1)):
            number = MICROBATCHES - 1 - m
            edges.append(Edge(Pass(rank, "EF", m), Pass(stage, "F", number)))
            edges.append(Edge(Pass(stage, back, number), Pass(rank, "EB", m)))
    return replace(base, ranks=tuple(rows), edges=tuple(edges))


def features(microbatch: int) -> Tensor:
    """The features of one of the encoders' microbatches."""
    return torch.tensor([10.0**microbatch, 1.0])


class StandIn:
    """A rank's stages and encoder: every stage adds what it is given, gradients are constants."""

    kinds = frozenset(("F", "B", "I", "W", "EF", "EB"))

    def __init__(self, stages: int) -> None:
        self.stages = stages
        self.outputs: dict[int, Tensor] = {}
        self.gradients: dict[int, list[Tensor]] = {}

    def begin_step(self, data: StepData) -> None:
        del data

    def run_pass(self, what: Pass, given: Given) -> Made:
        tensors = [value for value in given.values() if isinstance(value, Tensor)]
        brought = [t for n, values in given.items() if n.startswith("X_") for t in values]
        if what.kind == "EF":
            return {"X_EF": features(what.microbatch), "encoder": "kept"}
        if what.kind == "EB":
            self.gradients[what.microbatch] = brought
            return {}
        if what.kind == "F":
            found = sum([*tensors, *brought], torch.zeros(2))
            if what.stage == self.stages - 1:
                self.outputs[what.microbatch] = found
            return {"F": found, "activation": "kept"}
        # The gradient of a stage's features says which stage and microbatch it is of.
        own = torch.tensor([float(what.stage), float(what.microbatch)])
        return {"B": torch.zeros(2), "X_B": own, "X_I": own, "weight": "kept"}

    def finish_step(self) -> None:
        return None


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "interleaved", "zbv"])
@pytest.mark.parametrize("seed", range(3))
def test_features_and_their_gradients_reach_the_passes_of_their_edges(name: str, seed: int) -> None:
    program = encoded(name)
    check(program)
    microbatch = MicrobatchData({}, 1.0, TensorSpec((2,)))
    wanted = (True,) * (program.stages + 1)
    data = StepData((microbatch,) * MICROBATCHES, wanted)
    loop, parts = Loopback(RANKS), [StandIn(program.stages) for _ in range(RANKS)]
    walks = []
    for rank, part in enumerate(parts):
        by_kind = dict.fromkeys(part.kinds, part)
        walker = Walker(by_kind, loop.links(rank), collectives(program), reduce=lambda _: None)
        walks.append(walk(compile_program(program, rank, wanted), data, walker))
    loop.run(walks, random.Random(seed).choice)
    outputs = parts[program.placement[-1]].outputs
    for number in range(MICROBATCHES):
        encoder = MICROBATCHES - 1 - number
        # Both stages added the features; the output is what the last stage made of them.
        assert torch.equal(outputs[number], 2 * features(encoder))
        first, second = parts[encoder % RANKS].gradients[encoder]
        assert sorted([first.tolist(), second.tolist()]) == [[0, number], [1, number]]
