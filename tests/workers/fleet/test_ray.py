"""Fleets on real Ray clusters of two raylets: placed, scaled, and robbed of a node."""

import contextlib
import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.balancer.protocol.status_messages import GetStatus, StatusReport
from counterpoise.balancer.transport.asking import observe
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers import TarDataset, VisionLanguage
from counterpoise.workers.fleet import control
from counterpoise.workers.fleet.processes import BalancerProcess
from counterpoise.workers.fleet.ray_actors import HINT, ray_launcher
from tests.docs.pages import blocks
from tests.flat_options import balanced_loader
from tests.loader import balanced_data

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(500)]

SMALL: dict[str, Any] = {"tile_size": 32, "max_tiles": 4, "tokens_per_tile": 4}
SAMPLES = 240
LIMIT_S = 120
MARK = "COUNTERPOISE_FLEET_TEST"
# What each node is for; workers are told not to go where trainers are.
SMALL_NODE: dict[str, Any] = {"object_store_memory": 80 << 20}
TRAINERS, WORKERS = {"for": "trainers"}, {"for": "workers"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    return Path(ensure_demo_data(folder, samples=SAMPLES, shards=2)).parent


@pytest.fixture
def cluster(monkeypatch):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv(MARK, str(os.getpid()))
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "20")
    quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    small = {**SMALL_NODE, "include_dashboard": False, "_system_config": quick}
    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "labels": TRAINERS, **small}
    )
    try:
        ray.init(address=made.address, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def add_workers_node(cluster, cpus):
    return cluster.add_node(num_cpus=cpus, labels=WORKERS, **SMALL_NODE)


def make(root, ranks, balancer=None, **changes):
    dataset = TarDataset(str(root / "*.tar"), VisionLanguage(**SMALL), cache=root.parent / "cache")
    given: dict[str, Any] = {
        "grouping": "isf",
        "budgets": {"tiles": 16, "tokens": 3000},
        "accumulate": "auto",
    }
    given |= {"samples_per_step": 12, "ranks": ranks, "shuffle": True}
    given |= {"layout": "torch", "collate_fn": list, "timeout": LIMIT_S, **changes}
    if balancer is None:
        given |= {"timeout": 0}
    return balanced_loader(dataset, balancer=balancer, **given)


class Rank:
    """A trainer process that takes steps when it is asked to."""

    def __init__(self, root, rank, fleet):
        self.loader = make(root, (rank, 2), fleet)
        self.steps = self.loader.steps()

    def take(self, steps):
        """Return the digests of so many steps; fewer at the end."""
        return [digests(step) for step in (next(self.steps, None) for _ in range(steps)) if step]

    def close(self):
        self.loader.close()


def digests(step):
    pairs = zip(step.microbatches, step.infos, strict=True)
    return step.number, [(info.rank, info.keys, balanced_data.digest(b)) for b, info in pairs]


def expected(root, ranks=2):
    """Return what local loops deliver, by step: all ranks' digests."""
    found = {}
    loader = make(root, cp.Ranks(virtual=ranks))
    for number, each in map(digests, loader.steps()):
        found[number] = sorted(each)
    return found


def wait_for(is_so, what):
    """Wait until something is so; return what `is_so` does."""
    pause = threading.Event()
    for _ in range(LIMIT_S * 2):
        if found := is_so():
            return found
        pause.wait(0.5)
    raise AssertionError(f"no {what}")


def status_of(fleet):
    """Return the balancer's report."""
    with observe(*fleet.join()) as observer:
        status = observer.ask(GetStatus(), StatusReport, LIMIT_S)
    assert isinstance(status, StatusReport), status
    return status


def wait_for_workers(fleet, count):
    """Wait until the balancer has so many workers that serve; return its report."""

    def report():
        status = status_of(fleet)
        ready = [each for each in status.worker_statuses if each.state == "ready"]
        return status if len(ready) == count else None

    return wait_for(report, f"{count} workers")


def leftovers():
    """Return the command lines of balancers and workers that these tests have started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (path / "cmdline").read_bytes()
            is_ours = f"{MARK}={os.getpid()}".encode() in (path / "environ").read_bytes()
            if is_ours and (b"(['worker'" in line or b"(['balancer'" in line):
                found.append(line[-200:])
    return found


def test_it_is_scaled_and_loses_a_raylet_while_two_ranks_train(cluster, root):
    import ray

    node = add_workers_node(cluster, cpus=8)
    fleet = cp.fleet.Ray(workers=(2, 8), root=str(root), idle_s=20.0)
    right = expected(root)
    found: dict[int, list[Any]] = {}
    rank = ray.remote(Rank).options(num_cpus=0, label_selector=TRAINERS)
    ranks: list[Any] = [rank.remote(root, number, fleet) for number in range(2)]

    def train(steps):
        for number, each in itertools.chain(*ray.get([each.take.remote(steps) for each in ranks])):
            found.setdefault(number, []).extend(each)

    train(2)
    fleet.resize(4)
    wait_for_workers(fleet, 4)
    fleet.resize(8)
    train(2)
    status = wait_for_workers(fleet, 8)
    assert {each.transport.partition(":")[0] for each in status.worker_statuses} == {"direct"}
    train(2)
    cluster.remove_node(node, allow_graceful=False)
    train(4)  # by those on the node that is left, which Ray starts again there
    fleet.resize(2)
    train(2)
    status = wait_for_workers(fleet, 2)
    lost = status.lost
    train(len(right))
    assert {number: sorted(each) for number, each in found.items()} == right
    assert status_of(fleet).lost == lost  # who is let go is not lost
    ray.get([each.close.remote() for each in ranks])
    wait_for(lambda: not leftovers(), f"end of {leftovers()}")


def test_without_a_place_it_waits_says_so_and_goes_on(cluster, root, caplog, monkeypatch):
    monkeypatch.setattr(control, "SAY_S", 2.0)
    nowhere = {"num_cpus": 1, "resources": {"place": 1}}
    served = BalancerProcess("127.0.0.1")
    launch = ray_launcher(served.address, ["--root", str(root)], nowhere)
    ends, found = threading.Event(), []
    run = control.FleetControl(launch, served, (1, 1), None, HINT).run
    fleet = threading.Thread(target=run, args=[ends.is_set])
    loader = make(root, cp.Ranks(virtual=2), balancer=served.address)
    training = threading.Thread(target=lambda: found.extend(map(digests, loader.steps())))
    fleet.start()
    training.start()
    try:
        text = "1 of 1 workers have not come: Ray has no node with what they ask for free"
        wait_for(lambda: text in caplog.text, text)
        assert not found
        cluster.add_node(num_cpus=1, resources={"place": 1}, **SMALL_NODE)
        training.join(LIMIT_S)
    finally:
        ends.set()
        fleet.join(LIMIT_S)
        loader.close()
    assert {number: sorted(each) for number, each in found} == expected(root)
    wait_for(lambda: not leftovers(), f"end of {leftovers()}")


def test_a_ray_train_job_that_is_resized_has_the_same_global_batches(cluster, root, tmp_path):
    import ray.train
    from ray.train.torch import TorchTrainer

    from tests.workers.fleet.train_on_ray import train

    out = tmp_path / "out"
    out.mkdir()
    trainers: dict[str, Any] = {"resources": {"trainer": 1}}
    first, second = (cluster.add_node(num_cpus=1, **trainers, **SMALL_NODE) for _ in range(2))
    assert first is not second
    hold_at(out, 3)
    elastic: dict[str, Any] = {
        "num_workers": (1, 2),
        "resources_per_worker": {"trainer": 1, "CPU": 0},
        "elastic_resize_monitor_interval_s": 1.0,
    }
    config = {"data": f"{root}/*.tar", "root": str(root), "small": SMALL, "out": str(out)}
    trainer = TorchTrainer(
        train, train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(**elastic),
        run_config=ray.train.RunConfig(
            name="resized", storage_path=str(tmp_path / "runs"),
            failure_config=ray.train.FailureConfig(max_failures=10),
        ),
    )  # fmt: skip
    done = threading.Thread(target=trainer.fit)
    done.start()
    wait_for(lambda: list(out.glob("003.*.of.2")), "step 3 on two ranks")
    cluster.remove_node(second, allow_graceful=False)
    hold_at(out, 6)
    wait_for(lambda: list(out.glob("006.0.of.1")), "step 6 on one rank")
    cluster.add_node(num_cpus=1, **trainers, **SMALL_NODE)
    wait_for(lambda: list(out.glob("00[67].*.of.2")), "two ranks again")
    hold_at(out, 999)
    done.join(LIMIT_S)
    assert not done.is_alive()
    found: dict[tuple[int, int], list[str]] = {}
    for path in sorted(out.glob("*.of.*")):
        number, _, ranks = path.name.partition(".")
        told = json.loads(path.read_text())
        found.setdefault((int(number), told["ranks"]), []).extend(told["keys"])
    assert {ranks for _, ranks in found} == {1, 2}
    assert len([1 for number, ranks in found if number > 6 and ranks == 2]) > 0
    right = fixed(root)
    assert {number for number, _ in found} == set(right)
    # A step that was under way when a node was lost is there twice, and once of one rank only.
    for (number, ranks), keys in found.items():
        whole = len(list(out.glob(f"{number:03d}.*.of.{ranks}"))) == ranks
        assert sorted(keys) == right[number] if whole else set(keys) < set(right[number])


def page_blocks(root):
    """Return the page's Python, with a data set, a number of workers and a root that are here."""
    here = {"/data/shards": str(root), '"/data"': repr(str(root)), "(4, 64)": "(1, 2)"}
    found = [block.text for block in blocks("python") if block.page.endswith("fleet-ray.md")]
    for given, ours in here.items():
        found = [text.replace(given, ours) for text in found]
    return found


def test_the_first_example_of_the_page_delivers_an_epoch(cluster, root):
    cluster.add_node(num_cpus=2, labels={"role": "readers"}, **SMALL_NODE)
    first, _ = page_blocks(root)
    names: dict[str, Any] = {}
    exec(first, names)
    keys = [key for step in names["loader"].steps() for info in step.infos for key in info.keys]
    names["loader"].close()
    cp.fleet.Ray().end()
    assert len(keys) == len(set(keys)) == SAMPLES
    wait_for(lambda: not leftovers(), f"end of {leftovers()}")


def test_the_example_for_ray_train_saves_its_ledger_and_goes_on_from_it(cluster, root, tmp_path):
    import ray.train
    from ray.train.torch import TorchTrainer

    first, second = page_blocks(root)
    data = first.partition("loader =")[0]
    names: dict[str, Any] = {}
    exec(data + second, names)
    cluster.add_node(num_cpus=4, **SMALL_NODE)

    def fit(name, **given):
        trainer = TorchTrainer(
            names["train"], train_loop_config={}, **given,
            scaling_config=ray.train.ScalingConfig(
                num_workers=2, resources_per_worker={"CPU": 1}
            ),
            run_config=ray.train.RunConfig(name=name, storage_path=str(tmp_path / "runs")),
        )  # fmt: skip
        return trainer.fit()

    ended = fit("first")
    steps = SAMPLES // 16
    assert ended.metrics["step"] == steps - 1
    with ended.checkpoint.as_directory() as folder:
        ledger = json.loads(Path(folder, "ledger.json").read_text())
    assert ledger["step"] == steps


def hold_at(out, step):
    partial = out / "hold.new"
    partial.write_text(str(step))
    partial.replace(out / "hold")


def fixed(root):
    """Return the samples of each step, from a local loop."""
    dataset = TarDataset(str(root / "*.tar"), VisionLanguage(**SMALL))
    balance = cp.Balance("fixed", accumulate=6)
    loader = cp.DataLoader(dataset, balance=balance, shuffle=True, batch_size=2, collate_fn=list)
    steps = map(digests, loader.steps())
    return {number: sorted(key for _, keys, _ in each for key in keys) for number, each in steps}
