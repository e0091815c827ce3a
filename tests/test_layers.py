"""The walls of the project: imports run downward, shells are named, doctests are true."""

import doctest
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import size
from tests.imports import FOLDERS, ROOT, cycles, imported, layer_graph, module_graph, modules

MAY_IMPORT = {
    "tools": {"loader", "workers", "balancer", "sched"}, "loader": {"balancer", "workers"},
    "workers": {"balancer"}, "balancer": set[str](), "sched": set[str](),
}  # fmt: skip
# It knows nothing of planning: the one answer to a wrong name, for every constructor.
EVERYWHERE = "balancer.near_names"
# Every sub-package, and modules that are a layer by themselves, bottom to top: each imports only
# those above it in this table.
ORDER = (
    "balancer.unknown_arguments",
    "balancer.near_names",
    # sched
    "sched.ir",
    "sched.simulation",
    "sched.checking",
    "sched.generators",
    "sched.transforms",
    "sched.render",
    "sched.shapes",
    "sched.planners",
    "sched.planners.orchestration",
    "sched.bubble_filling.kernels",
    "sched.bubble_filling",
    "sched.planners.job",
    "sched.replanning",
    "sched.runtime.compiled",
    "sched.runtime.settings",
    "sched.runtime.parts",
    "sched.runtime.vocabulary",
    "sched.runtime.links",
    "sched.runtime.gradients",
    "sched.runtime.stage",
    "sched.runtime.stage.generator",
    "sched.runtime.encoders",
    "sched.runtime.execution",
    "sched.runtime.tensor",
    "sched.runtime.model_state",
    "sched.runtime.units",
    "sched.runtime.job",
    "sched.runtime.pipeline",
    "sched.runtime.files",
    "sched.runtime.pretrained",
    "sched.runtime.families",
    "sched.runtime",
    "sched",
    # balancer
    "balancer.planning.kernels",
    "balancer.planning.problem",
    "balancer.planning.mixing",
    "balancer.planning.grouping",
    "balancer.planning.partition",
    "balancer.planning.ordering",
    "balancer.planning",
    "balancer.in_memory",
    "balancer.protocol",
    "balancer.run",
    "balancer.pool",
    "balancer.parties",
    "balancer.transport.naming",
    "balancer.job",
    "balancer.transport",
    "balancer.server",
    "balancer",
    # workers
    "workers.arena",
    "workers.codec",
    "workers.serving",
    "workers.images",
    "workers.media",
    "workers.sources",
    "workers.collate",
    "workers.stores",
    "workers.discovery",
    "workers.tar",
    "workers.vision_language",
    "workers.hf_processor",
    "workers.jsonl",
    "workers.columns",
    "workers.selection",
    "workers.mixture",
    "workers.mds",
    "workers.energon",
    "workers.batches",
    "workers.planned",
    "workers.processes",
    "workers.daemon",
    "workers.fleet",
    "workers",
    # loader
    "loader.on_error",
    "loader.step",
    "loader.peers",
    "loader.step.dispatch",
    "loader.resume",
    "loader.models",
    "loader.collate",
    "loader.metrics",
    "loader.balanced",
    "loader.plain",
    "loader.local",
    "loader.streams",
    "loader.remote",
    "loader.auto",
    "loader.adapters",
    "loader",
    # tools
    "tools.console",
    "tools.inputs",
    "tools.runners",
    "tools.demo",
    "tools.analyze.scan",
    "tools.analyze",
    "tools.prepare",
    "tools.plan",
    "tools.schedule",
    "tools.doctor",
    "tools.services",
    "tools.top",
    "tools.trace",
    "tools.trial",
    "tools",
    # the root, which offers the names that people need
    "",
)
# What a layer may not import, lazily or not: (who, whom). "loader.local" means all that is in it.
FORBIDDEN = (
    # A plain loop: torch's, with batches in memory that is used again.
    ("loader.plain", ("balancer", "workers.codec", "workers.daemon", "loader.balanced")),
    ("workers.arena", ("balancer", "workers.codec", "workers.daemon", "workers.sources")),
    ("workers.batches", ("balancer", "workers.codec", "workers.daemon")),
    ("workers.sources", ("balancer", "workers.codec", "workers.daemon")),
    # Data sets: who carries their samples is nothing to them.
    ("workers.tar", ("balancer", "workers.codec", "workers.daemon")),
    ("workers.vision_language", ("balancer", "workers.codec")),
    # The form of payloads, whoever carries them.
    ("workers.codec", ("balancer", "workers.serving")),
    # A balanced loop on its own machine: a planned order, and no balancer.
    (
        "loader.local",
        (
            *("balancer.pool", "balancer.parties", "balancer.job", "balancer.transport"),
            *("balancer.server", "balancer.protocol.messages", "loader.remote"),
            *("workers.codec", "workers.daemon", "workers.serving"),
        ),
    ),
    # How ranks meet knows nothing of data sets or plans.
    ("loader.peers", ("balancer.planning", "workers", "loader.local", "loader.balanced")),
    # The remote wing: pool, parties and job are pure, and one shell serves them.
    ("balancer.planning", ("balancer.protocol", "balancer.run", "balancer.server")),
    *(
        (each, ("balancer.transport.sockets", "balancer.server"))
        for each in ("balancer.run", "balancer.pool", "balancer.parties", "balancer.job")
    ),
)
TORCH_FREE = ("balancer", "sched")
# The runtime runs schedules on tensors; what decides there is apart from it, and free of torch.
RUNTIME, RUNTIME_TORCH_FREE = "sched.runtime", "sched.runtime.compiled"
# The shells: the only modules that may import zmq.
ZMQ_SHELLS = {
    "balancer.server.loop", "balancer.transport.asking", "balancer.transport.authentication",
    "balancer.transport.keys", "balancer.transport.sockets", "workers.daemon.job_worker",
    "workers.daemon.jobs", "workers.serving.server", "loader.remote.rank_sockets",
    "loader.remote.puller",
}  # fmt: skip


def _inside(folder: str) -> Iterator[tuple[str, Path]]:
    return ((name, path) for name, path in modules().items() if name.split(".")[0] == folder)


def _roots(path: Path) -> set[str]:
    """Return the first words of what a file imports from elsewhere: {"torch", "numpy"}."""
    return {module.split(".")[0] for level, module, _ in imported(path) if level == 0}


def test_the_order_has_every_sub_package_and_nothing_else() -> None:
    assert sorted(ORDER) == sorted(layer_graph(ORDER))


def test_sub_packages_import_only_what_is_below_them() -> None:
    rank = {package: n for n, package in enumerate(ORDER)}
    wrong = [
        f"{package or 'counterpoise'} imports {target or 'counterpoise'}"
        for package, targets in layer_graph(ORDER).items()
        for target in targets
        if rank[target] > rank[package]
    ]
    assert not wrong


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize(("package", "forbidden"), FORBIDDEN)
def test_walls_keep_ideas_apart(package: str, forbidden: tuple[str, ...]) -> None:
    assert any(_is_in(name, package) for name in modules())
    assert all(any(_is_in(name, each) for name in modules()) for each in forbidden)
    wrong = [
        f"{name} imports {target}"
        for name, targets in module_graph().items()
        for target in targets
        if _is_in(name, package) and any(_is_in(target, each) for each in forbidden)
    ]
    assert not wrong


def test_sub_packages_have_no_cycle() -> None:
    assert not cycles(layer_graph(ORDER))


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_import_only_the_folders_below_them(folder: str) -> None:
    for package, targets in layer_graph(ORDER).items():
        if package.split(".")[0] == folder:
            imported_folders = {name.split(".")[0] for name in targets if name != EVERYWHERE}
            wrong = imported_folders - MAY_IMPORT[folder] - {folder}
            assert not wrong, f"{package} imports {wrong}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_our_own_imports_are_relative(folder: str) -> None:
    for name, path in _inside(folder):
        assert "counterpoise" not in _roots(path), name


# What measures and what tests: not in the wheel, so that nothing there can need it.
LABORATORY = {"benchmarks", "tests"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_product_module_imports_the_laboratory_or_the_tests(folder: str) -> None:
    for name, path in _inside(folder):
        assert not LABORATORY & _roots(path), name


@pytest.mark.parametrize("folder", TORCH_FREE)
def test_planning_and_schedules_do_not_import_torch(folder: str) -> None:
    for name, path in _inside(folder):
        if not name.startswith(RUNTIME) or name.startswith(RUNTIME_TORCH_FREE):
            assert "torch" not in _roots(path), name


def test_zmq_is_imported_only_by_the_named_shells() -> None:
    users = {name for name, path in modules().items() if "zmq" in _roots(path)}
    assert users == ZMQ_SHELLS


def test_no_other_python_file_is_at_the_root(root: Path) -> None:
    # setup.py is there for the packages' rule alone; test_packaging holds that it does not ship.
    # `python -m counterpoise` needs __main__.py.
    found = sorted(path.name for path in root.glob("*.py"))
    assert found == ["__init__.py", "__main__.py", "setup.py"]


@pytest.mark.parametrize("name", ["counterpoise", "counterpoise.sched", "counterpoise.balancer"])
def test_importing_does_not_import_torch_or_zmq(name: str, tmp_path: Path) -> None:
    code = f"import sys, {name}; sys.exit(len({{'torch', 'zmq'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


# What the processes of a loop may have of ours and of others, after an epoch with two workers.
LOOPS = (
    (size.PLAIN, {"zmq", "msgpack"}, ("balancer",)),
    (
        size.BALANCED,
        {"zmq", "msgpack"},
        (
            *("balancer.pool", "balancer.transport", "balancer.server", "loader.remote."),
            *("balancer.protocol.messages", "workers.codec", "workers.daemon", "loader.auto"),
        ),
    ),
)


@pytest.mark.parametrize(("loop", "others", "ours"), LOOPS)
def test_a_loop_imports_no_more_than_it_uses(
    loop: str, others: set[str], ours: tuple[str, ...]
) -> None:
    trainer, workers = size.all_imported_by(loop)
    found = trainer | workers
    assert "counterpoise.loader.dataloader" in found
    assert not others & found
    found -= {"counterpoise.balancer", f"counterpoise.{EVERYWHERE}"}
    assert not [name for name in found for each in ours if _is_in(name, f"counterpoise.{each}")]


# Of what can be left out, what a balancer's start would wait for longest.
LEFT_FOR_LATER = {"torch", "hashlib", "hmac", "asyncio", "ssl", "shutil"}


def test_a_balancer_starts_without_what_its_first_batch_does_not_need(tmp_path: Path) -> None:
    start = "import counterpoise.balancer.server.embedded"
    code = f"import sys; before = {{*sys.modules}}; {start}; print(*{{*sys.modules}} - before)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert LEFT_FOR_LATER & set(done.stdout.split()) == set()


# It imports torchtitan, which is not installed here; tests/frameworks runs it, with a stand-in.
NOT_IMPORTED = "loader.adapters.torchtitan"


# Folders outside the product whose functions have examples.
WITH_EXAMPLES = ("benchmarks", "tests/docs/generate")
OUTSIDE = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in WITH_EXAMPLES
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ">>>" in path.read_text()
]
PRODUCT = [f"counterpoise.{name}" for name in modules() if name and name != NOT_IMPORTED]


@pytest.mark.parametrize("name", [*PRODUCT, *OUTSIDE])
def test_every_doctest_is_true(name: str) -> None:
    module = importlib.import_module(name)
    # Each doctest looks at the files of all modules, the thousands without an example too.
    assert doctest.testmod(module, exclude_empty=True).failed == 0
