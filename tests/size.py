"""How large the product is, and how much of it loops import: `make size`.

Lines are physical lines of .py files. What a loop imports is asked of fresh processes: the modules
of ours that its trainer has after an epoch with two workers, and those that its workers add.
LIMITS holds what may not grow: a limit only falls. A change that needs lines cuts them elsewhere.
"""

import functools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.imports import FOLDERS, ROOT, module_graph, modules

# Which the wheel has beside the modules, for torchrun.
EXAMPLE = ROOT / "examples" / "train_vlm.py"
# The remote wing: what a local loop alone needs nothing of (ADR 63).
WING = (
    "balancer.pool", "balancer.parties", "balancer.job", "balancer.transport", "balancer.server",
    "balancer.protocol.messages", "balancer.protocol.status_messages",
    "balancer.protocol.trace_messages", "workers.daemon", "workers.serving", "workers.codec",
    "workers.collate.described", "workers.planned.kept_samples", "workers.planned.parts",
    "loader.remote.",
)  # fmt: skip
SHORT = 60

PLAIN, BALANCED = "a plain loop imports", "a local balanced loop imports"
PRODUCT, WHEEL, REMOTE = "product", "wheel", "the remote wing"
# Product, benchmarks, examples and tests, with scripts, styles and templates: so that nothing is
# moved in place of being removed.
EVERYTHING = "everything together"
SOURCES = (".py", ".pyi", ".js", ".css", ".html", ".j2")

# Upper limits of lines; they aim at 65,000, 65,000, 7,500, 20,000 and 6,500 (ADR 10).
LIMITS = {
    PRODUCT: 85_414, WHEEL: 85_827, PLAIN: 6_105, BALANCED: 16_460, REMOTE: 9_458,
    EVERYTHING: 199_954,
}  # fmt: skip

_LOOP = """
import os, pathlib, sys
import torch
import counterpoise

class Numbers:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        pathlib.Path(FOLDER, f"worker-{os.getpid()}").write_text(" ".join(sys.modules))
        return torch.full((8,), index)

if __name__ == "__main__":
    loader = counterpoise.DataLoader(Numbers(), batch_size=4, num_workers=2, MORE)
    for batch in loader:
        pass
    pathlib.Path(FOLDER, "trainer").write_text(" ".join(sys.modules))
"""
_LOOPS = {
    PLAIN: "shuffle=True",
    BALANCED: (
        "shuffle=True, balance=counterpoise.Balance('fixed'), "
        "cost={'tokens': [1 + n % 7 for n in range(64)]}"
    ),
}


@dataclass(frozen=True)
class Size:
    """Lines of .py files and how many files have them."""

    lines: int
    files: int

    def __str__(self) -> str:
        return f"{self.lines:7,} lines  {self.files:4} modules"


@functools.cache
def lines_of(path: Path) -> int:
    """Return a file's physical lines."""
    return len(path.read_bytes().splitlines())


def everything() -> Iterator[Path]:
    """Yield the files of the product, its benchmarks, examples and tests."""
    yield ROOT / "__init__.py"
    for folder in (*FOLDERS, "benchmarks", "examples", "tests"):
        yield from (ROOT / folder).rglob("*.*")


def size_of(paths: Iterable[Path]) -> Size:
    """Return the size of these files together."""
    found = list(paths)
    return Size(sum(map(lines_of, found)), len(found))


def static_sizes() -> dict[str, Size]:
    """Return the sizes of what lies in the folders."""
    product = modules()
    wing = (path for name, path in product.items() if f"{name}.".startswith(WING))
    return {
        PRODUCT: size_of(product.values()),
        WHEEL: size_of([*product.values(), EXAMPLE]),
        REMOTE: size_of(wing),
        EVERYTHING: size_of(path for path in everything() if path.suffix in SOURCES),
    }


def imported_by(loop: str) -> tuple[set[str], set[str]]:
    """Return the modules of ours that a loop's trainer has, and those that only its workers have.

    Names are those of `tests.imports`: "loader.dataloader", "" for the root.
    """
    trainer, workers = map(_ours, all_imported_by(loop))
    return trainer, workers - trainer


@functools.cache
def all_imported_by(loop: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return all modules that a loop's trainer has, and those of its workers, by full names."""
    with tempfile.TemporaryDirectory(prefix="counterpoise-size-") as folder:
        program = Path(folder, "loop.py")
        text = _LOOP.replace("FOLDER", repr(folder)).replace("MORE", _LOOPS[loop])
        program.write_text(text)
        done = subprocess.run(
            [sys.executable, "-P", str(program)], capture_output=True, text=True, cwd=folder
        )
        if done.returncode:
            raise RuntimeError(f"a loop that is measured failed:\n{done.stderr}")
        trainer = frozenset(Path(folder, "trainer").read_text().split())
        files = Path(folder).glob("worker-*")
        workers = frozenset(name for file in files for name in file.read_text().split())
    return trainer, workers


def _ours(found: Iterable[str]) -> set[str]:
    names = (name for name in found if name.split(".")[0] == "counterpoise")
    ours = {name.removeprefix("counterpoise").removeprefix(".") for name in names}
    return ours & modules().keys()  # extensions have no lines


def loop_sizes() -> dict[str, tuple[Size, Size]]:
    """Return for each loop the size of what its trainer imports, and of what workers add."""
    known = modules()
    return {
        loop: (size_of(known[n] for n in trainer), size_of(known[n] for n in workers))
        for loop, (trainer, workers) in ((loop, imported_by(loop)) for loop in _LOOPS)
    }


def short_modules() -> list[str]:
    """Return the modules under SHORT lines; packages' `__init__` are not counted."""
    return [
        name
        for name, path in modules().items()
        if path.name != "__init__.py" and lines_of(path) < SHORT
    ]


def single_importers() -> dict[str, str]:
    """Return the modules that one other imports, and which; packages are not counted."""
    importers: Counter[str] = Counter()
    last: dict[str, str] = {}
    for name, targets in module_graph().items():
        for target in targets:
            importers[target] += 1
            last[target] = name
    return {
        name: last[name]
        for name, path in modules().items()
        if importers[name] == 1 and path.name != "__init__.py"
    }


def main(arguments: list[str]) -> None:
    """Print the sizes, with --json as one JSON object, with --names short modules too."""
    static, loops = static_sizes(), loop_sizes()
    short, single = short_modules(), single_importers()
    if "--json" in arguments:
        lines = {name: size.lines for name, size in static.items()}
        lines |= {name: trainer.lines for name, (trainer, _) in loops.items()}
        counts = {"short modules": len(short), "single importer": len(single)}
        print(json.dumps(lines | counts))
        return
    for name, size in static.items():
        print(f"{name:32} {size}{_limit(name)}")
    for name, (trainer, workers) in loops.items():
        print(f"{name:32} {trainer}{_limit(name)}")
        print(f"{'  its workers also':32} {workers}")
    both = {name: single[name] for name in short if name in single}
    print(f"modules under {SHORT} lines: {len(short)}; with one importer: {len(single)}; ", end="")
    print(f"both: {len(both)} (--names lists these)")
    if "--names" in arguments:
        _print_names(both)


def _limit(name: str) -> str:
    return f"  (limit {LIMITS[name]:,})" if name in LIMITS else ""


def _print_names(single: Mapping[str, str]) -> None:
    for name, importer in single.items():
        print(f"  {lines_of(modules()[name]):3} {name}, imported by {importer or 'the root'}")


if __name__ == "__main__":
    main(sys.argv[1:])
