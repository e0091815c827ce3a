"""The modules whose tests are tried with mutants, and the tests that must notice these."""

from dataclasses import dataclass

PLANNING = "tests/balancer/planning/"
FILLING = "tests/sched/bubble_filling/"
VOCABULARY = "tests/sched/runtime/vocabulary/"
SIMULATION = "tests/sched/simulation/"


@dataclass(frozen=True, slots=True)
class Tried:
    """Modules of one folder, the test files that are theirs, and whether numba runs as Python."""

    folder: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    as_python: bool = False


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}test_{name}.py" for name in names)


TRIED = (
    Tried(
        "balancer/planning/kernels",
        ("assign", "excess", "isf", "level", "pack", "partition", "pipeline", "shuffle", "swap"),
        _in(PLANNING, "kernels", "excess", "partition", "shuffle", "grouping", "ordering")
        + _in(PLANNING, "levelling", "figures"),
        as_python=True,
    ),
    Tried(
        "sched/bubble_filling/problem",
        ("jit_place", "jit_walk"),
        _in(FILLING, "exact", "bound", "drift", "trace", "bad_input", "schedules"),
        as_python=True,
    ),
    Tried(
        "sched/bubble_filling/problem",
        ("gaps", "instance", "kernels", "setup"),
        _in(FILLING, "exact", "bound", "drift", "trace", "bad_input", "schedules"),
    ),
    Tried(
        "sched/bubble_filling/solve",
        ("bound", "matching", "pipelines", "search", "validate"),
        _in(FILLING, "exact", "bound", "drift", "trace", "bad_input", "schedules"),
    ),
    Tried(
        "sched/bubble_filling/results",
        ("causes", "drift", "filled_program", "replay"),
        _in(FILLING, "exact", "bound", "drift", "trace", "bad_input", "schedules"),
    ),
    Tried(
        "sched/bubble_filling/plan",
        ("choose", "encoder_plans"),
        _in(FILLING, "exact", "bound", "drift", "trace", "bad_input", "schedules"),
    ),
    Tried(
        "sched/runtime/vocabulary",
        (
            "gradients",
            "input_passes",
            "logits",
            "loss",
            "output_passes",
            "part",
            "shard",
            "step",
        ),
        _in(VOCABULARY, "sharding", "output_layer", "input_layer", "part", "precision", "refusals")
        + _in(VOCABULARY, "schedules", "checkpoint", "memory"),
    ),
    Tried(
        "sched/generators",
        ("vocabulary",),
        _in("tests/sched/generators/", "vocabulary", "generators"),
    ),
    Tried(
        "sched/simulation",
        ("simulator", "costs", "memory", "bubbles"),
        _in(SIMULATION, "simulate", "memory", "cost_profile", "measured")
        + _in("tests/sched/generators/", "generators")
        + _in("tests/sched/transforms/", "lowering", "messages"),
    ),
    Tried(
        "sched/checking",
        ("checker", "completeness", "order"),
        _in("tests/sched/checking/", "check", "mutations")
        + _in("tests/sched/transforms/", "lowering", "messages"),
    ),
)
