"""The CSV of torch.distributed.pipelining, both ways, with torch itself as the judge."""

from pathlib import Path
from unittest import mock

import pytest

from counterpoise.sched import Pass, Program, lower, place, schedule, schedules
from counterpoise.sched.ir.torch_csv import COMPUTE, read_csv, write_csv

runtime = pytest.importorskip("torch.distributed.pipelining.schedules")
visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
# Not 1F1B: in torch 2.13 the table of its last rank names microbatches 1 to n instead of 0 to n-1.
TORCH = ("GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
TORCH_V = ("ZBVZeroBubble", "DualPipeV")


def kinds_of(program: Program) -> set[str]:
    return {item.kind for row in program.ranks for item in row}


NAMES = [
    found.name
    for found in schedules()
    if kinds_of(schedule(found.name, ranks=4, microbatches=8)) <= set(COMPUTE)
]


def torch_runtime(ranks: int, stages: int, microbatches: int):
    """Torch's runtime without processes: its stages are mocks."""
    stage = mock.create_autospec(runtime._PipelineStageBase, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages = 0, ranks, stages
    stage.stage_index, stage.has_backward, stage.submod = 0, True, None
    stage.is_first, stage.is_last = True, False
    held = [stage] * (stages // ranks)
    return runtime._PipelineScheduleRuntime(held, microbatches, loss_fn=lambda *_: None)


def without_waits(actions: list) -> list[str]:
    return [str(action) for action in actions if action is not None and "WAIT_" not in str(action)]


@pytest.mark.parametrize("name", NAMES)
def test_torchs_runtime_loads_ours_and_dumps_it_back(name: str, tmp_path: Path) -> None:
    program = schedule(name, ranks=4, microbatches=8)
    file = tmp_path / "ours.csv"
    file.write_text(write_csv(program))
    theirs = torch_runtime(len(program.ranks), program.stages, program.microbatches)
    theirs._load_csv(str(file), format="compute_only")
    loaded = tuple(tuple(map(str, theirs.pipeline_order[r])) for r in range(len(program.ranks)))
    assert loaded == tuple(tuple(map(str, row)) for row in program.ranks)
    theirs._dump_csv(str(tmp_path / "theirs.csv"), format="compute_only")
    assert read_csv((tmp_path / "theirs.csv").read_text(), program.name) == program


@pytest.mark.parametrize("name", [*TORCH, *TORCH_V])
def test_ours_reads_what_torch_makes(name: str) -> None:
    chunks = None if name == "GPipe" else 2
    rows = visualizer.get_schedule_ops(name, 4, 8, chunks)
    text = "\n".join(",".join("" if a is None else str(a) for a in row) for row in rows)
    program = read_csv(text)
    assert program.placement == place(4, chunks or 1, "v" if name in TORCH_V else "loop")
    assert program.microbatches == 8
    flat = [
        without_waits([part for a in row if a is not None for part in (a.sub_actions or (a,))])
        for row in rows
    ]
    assert [[str(item) for item in row] for row in program.ranks] == flat


def test_idle_steps_say_nothing() -> None:
    assert read_csv("0F0,,,0B0\n,1F0,1B0,\n") == read_csv("0F0,0B0\n1F0,1B0")


def test_ours_reads_torchs_lowered_form() -> None:
    rows = visualizer.get_schedule_ops("Interleaved1F1B", 2, 4, 2, with_comms=True)
    text = "\r\n".join(",".join(map(str, row)) for row in rows)
    program = read_csv(text)
    assert [[str(item) for item in row] for row in program.ranks] == [*map(without_waits, rows)]


def test_a_program_with_kinds_of_ours_or_messages_is_refused_by_name() -> None:
    program = Program(((Pass(0, "S", 0),),), (0,), 1)
    with pytest.raises(ValueError, match="torch's CSV has no kind S"):
        write_csv(program)
    with pytest.raises(ValueError, match="torch adds the messages itself"):
        write_csv(lower(schedule("1f1b", ranks=2, microbatches=2)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the CSV has no passes"),
        (",,\n,\n", "the CSV has no passes"),
        ("0F0,hello", "rank 0, cell 2: 'hello' is not a pass"),
        ("0F0\n1S0", "rank 1, cell 1: torch has no kind 'S'"),
        ("0F0\n0B0", "stage 0 is on rank 0 and on rank 1"),
        ("0F0\n2F0", "stage 1 is on no rank"),
    ],
)
def test_bad_csv_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_csv(text)
    assert "\n" not in str(caught.value)
