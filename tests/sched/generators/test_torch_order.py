"""Our orders against torch's own, pass by pass; docs/adr says where torch's is wrong."""

from typing import Any

import pytest

from counterpoise.sched import schedule

visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")

CASES = [
    ("GPipe", "gpipe", 4, 4, 1), ("GPipe", "gpipe", 3, 7, 1), ("1F1B", "1f1b", 4, 8, 1),
    ("1F1B", "1f1b", 8, 20, 1), ("Interleaved1F1B", "interleaved", 2, 4, 2),
    ("Interleaved1F1B", "interleaved", 4, 8, 2), ("Interleaved1F1B", "interleaved", 4, 12, 3),
    ("Interleaved1F1B", "interleaved", 4, 6, 3), ("Interleaved1F1B", "interleaved", 4, 2, 2),
    ("Interleaved1F1B", "interleaved", 8, 32, 4), ("ZBVZeroBubble", "zbv", 4, 8, 2),
    ("ZBVZeroBubble", "zbv", 4, 3, 2), ("ZBVZeroBubble", "zbv", 5, 20, 2),
    ("DualPipeV", "dualpipev", 4, 8, 2), ("DualPipeV", "dualpipev", 3, 11, 2),
    ("DualPipeV", "dualpipev", 8, 32, 2),
]  # fmt: skip


def torch_rows(name: str, ranks: int, microbatches: int, chunks: int) -> list[list[str]]:
    """Torch's compute passes in text, overlapped pairs one after the other."""
    sizes = (name, ranks, microbatches, *((chunks,) if chunks > 1 else ()))
    rows: list[list[Any]] = visualizer.get_schedule_ops(*sizes)
    return [
        [
            str(part)
            for action in row
            if action is not None
            for part in (action.sub_actions or (action,))
            if "REDUCE_GRAD" not in str(part)
        ]
        for row in rows
    ]


def shifted(row: list[str]) -> list[str]:
    """The row with the forwards that torch's listing of 1F1B numbers one too high put right."""
    forwards = [text for text in row if "F" in text]
    if not forwards or forwards[0].endswith("F0"):
        return row
    stage = forwards[0].split("F")[0]
    return [f"{stage}F{int(t.split('F')[1]) - 1}" if "F" in t else t for t in row]


@pytest.mark.parametrize(("theirs", "ours", "ranks", "microbatches", "chunks"), CASES)
def test_order_equals_torchs(
    theirs: str, ours: str, ranks: int, microbatches: int, chunks: int
) -> None:
    options = {"chunks": chunks} if ours == "interleaved" else {}
    program = schedule(ours, ranks=ranks, microbatches=microbatches, **options)
    expected = torch_rows(theirs, ranks, microbatches, chunks)
    if ours == "1f1b":
        assert expected[:-1] == [[str(p) for p in row] for row in program.ranks[:-1]]
        expected = [*expected[:-1], shifted(expected[-1])]
    assert [[str(p) for p in row] for row in program.ranks] == expected
