"""What every test shares: a clean import path, the real data when present, fixed randomness."""

import gc
import importlib.metadata
import importlib.util
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent

# ./sched would hide the standard library's module of the same name.
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != ROOT]

# A folder with nothing but links makes `tests.loader.delivered` and `benchmarks` importable, here
# and in the processes that tests start, without the root on the path.
_LINKED = tempfile.TemporaryDirectory(prefix="counterpoise-tests-")
for _name in ("tests", "benchmarks"):
    Path(_LINKED.name, _name).symlink_to(ROOT / _name)
sys.path.append(_LINKED.name)
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (os.environ.get("PYTHONPATH"), _LINKED.name))
)

# Where three test processes share two cores, threads that spin while they wait cost ten times the
# work. Set before torch is imported; processes that tests start inherit it.
os.environ["OMP_NUM_THREADS"] = "1"

# `make test DEPENDENCIES=oldest` has no frameworks, a torch that cannot run pipelines, other pixels
# than those on record (deliveries/), and a numpy that imports more.
collect_ignore = []
if importlib.util.find_spec("transformers") is None:
    collect_ignore += ["examples/test_hf.py", "frameworks/test_frameworks.py"]
    collect_ignore += ["sched/shapes/test_configs.py", "sched/shapes/test_peaks.py"]
    collect_ignore += ["workers/hf_processor"]
_OLDEST = Version(importlib.metadata.version("torch")) < Version("2.12")
if _OLDEST:
    collect_ignore += ["sched/runtime", "sched/ir/test_torch_runtime.py", "deliveries"]
    collect_ignore += ["soak/test_pipeline.py"]
_NOT_WITH_OLDEST = re.compile(
    r"benchmarks/test_benches.*\[(overlap|gpu|runtime|job|encoder)-|\[train_vlm\]"
    r"|test_a_plan_runs_from_its_file|test_a_balancer_starts_without"
    r"|the_python_of_a_page_runs\[(docs/pipelines/|docs/from/torch-pipelining"
    r"|.*(accelerate|lightning|trainer|trl|packed|hf-processor|SKILL|own-loop)\.md)"
)

# Nothing is thrown away while tests are collected.
gc.disable()

# No check of hypothesis looks at the clock: other processes have the cores, too.
settings.register_profile(
    "counterpoise",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("counterpoise")


# Files of which one process of pytest runs all: what they share is made once. A pool of ranks, with
# a server that has imported what these need, takes ten seconds of a core; the graph of all modules,
# and what loops import, some.
_TOGETHER = {
    "tests/sched/runtime/": "ranks", "tests/loader/step/dispatch/": "ranks",
    "tests/loader/test_partition_across.py": "ranks", "tests/test_layers.py": "modules",
    "tests/test_public_interface.py": "modules", "tests/test_size.py": "modules",
    "tests/test_structure.py": "modules",
}  # fmt: skip


def _scope_of(name: str) -> str | None:
    """Return the name of what tests share, given a test's."""
    return next((scope for start, scope in _TOGETHER.items() if name.startswith(start)), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first: no process is left alone with one at the end."""
    if _OLDEST:
        items[:] = [item for item in items if not _NOT_WITH_OLDEST.search(item.nodeid)]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (_scope_of(item.nodeid) != "ranks", item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one process, and those that share something to the same one."""
    if config.getvalue("dist") != "loadfile":
        return None
    # here: programs of tests/programs are tested without xdist
    from xdist.scheduler import LoadFileScheduling

    class SharedScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope_of(nodeid) or super()._split_scope(nodeid)

    return SharedScheduling(config, log)


def pytest_collection_finish() -> None:
    """Collect garbage again: see below."""
    gc.enable()


def pytest_sessionfinish() -> None:
    """Spare what is alive from the five collections of pytest's end, a second of a core each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _heap_is_frozen() -> None:
    """Spare what is alive from collections of garbage: a full one took two seconds.

    Tests that collect by themselves would pay for all that is imported each time, and so would the
    processes that they fork.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _no_process_group_left() -> Iterator[None]:
    """Fail where tests leave a process group: the loaders of later ones would be ranks of it."""
    yield
    distributed = sys.modules.get("torch.distributed")
    assert distributed is None or not distributed.is_initialized()


@pytest.fixture(autouse=True)
def _no_log_left() -> Iterator[None]:
    """Take back what a service's command, run in this process, has set up: it logs to this test."""
    level = logging.root.level
    yield
    # pytest's own handlers are of classes of its own.
    for handler in [each for each in logging.root.handlers if type(each) is logging.StreamHandler]:
        logging.root.removeHandler(handler)
    logging.root.setLevel(level)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("COUNTERPOISE_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("no real data here (set COUNTERPOISE_DATA)")
    return folder


@pytest.fixture
def through_balancer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give loaders that are alone on their host a balancer, as if processes shared their ranks."""
    # Here: most tests need no torch.
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    from counterpoise.loader import assembly

    monkeypatch.setattr(assembly, "is_local", lambda *_: False)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
