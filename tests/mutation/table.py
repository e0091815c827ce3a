"""The modules whose tests are tried with mutants, and the tests that must notice these."""

from dataclasses import dataclass

SCHEDULES = "tests/sched"


@dataclass(frozen=True, slots=True)
class Tried:
    """Modules of one folder, the files and folders of their tests, and if Python runs kernels."""

    folder: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    as_python: bool = False


PLANNING = tuple(
    f"tests/balancer/planning/{name}"
    for name in (
        "kernels",
        "test_excess.py",
        "test_grouping.py",
        "test_kernels.py",
        "test_levelling.py",
        "test_ordering.py",
        "test_padded.py",
        "test_partition.py",
        "test_shuffle.py",
        "test_tall_row.py",
    )
)
FILLING = (f"{SCHEDULES}/bubble_filling",)
# Not those that start processes: these load no mutant.
VOCABULARY = tuple(
    f"{SCHEDULES}/runtime/vocabulary/test_{name}.py"
    for name in (
        "checkpoint",
        "input_layer",
        "memory",
        "output_layer",
        "part",
        "pieces",
        "precision",
        "refusals",
        "schedules",
        "sharding",
    )
)
# A program that was made, lowered, simulated and checked is tested where any of this is.
PROGRAMS = tuple(
    f"{SCHEDULES}/{name}"
    for name in ("generators", "simulation", "transforms", "test_bad_input.py", "test_check.py")
)

TRIED = (
    Tried(
        "balancer/planning/kernels",
        (
            "assign",
            "excess",
            "isf",
            "level",
            "pack",
            "padded",
            "padded_exchange",
            "pipeline",
            "shuffle",
            "swap",
        ),
        PLANNING,
        as_python=True,
    ),
    Tried(
        "sched/bubble_filling",
        (
            "choose",
            "encoder_plans",
            "filled_program",
            "gaps",
            "instance",
            "pipelines",
            "search",
            "setup",
        ),
        FILLING,
        as_python=True,
    ),
    Tried("sched/bubble_filling/kernels", ("walks",), FILLING, as_python=True),
    Tried(
        "sched/runtime/vocabulary",
        (
            "logits",
            "loss",
            "output_passes",
            "shard",
            "step",
        ),
        VOCABULARY,
    ),
    Tried("sched/generators", ("vocabulary",), PROGRAMS),
    Tried("sched/simulation", ("simulator", "costs", "timeline"), PROGRAMS),
    Tried("sched", ("checking",), PROGRAMS),
)
