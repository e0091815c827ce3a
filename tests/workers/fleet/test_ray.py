"""Fleets on real Ray clusters of two raylets: placed, scaled, and robbed of a node."""

import itertools
import os
import threading
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.tools.doctor.asking import ask
from counterpoise.workers import TarDataset, VisionLanguage
from tests.flat_options import balanced_loader
from tests.loader import balanced_data

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(500)]

SMALL = {"tile_size": 32, "max_tiles": 4, "tokens_per_tile": 4}
SAMPLES = 240
LIMIT_S = 120
# What each node is for; workers are told not to go where trainers are.
TRAINERS, WORKERS = {"for": "trainers"}, {"for": "workers"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    return Path(ensure_demo_data(folder, samples=SAMPLES, shards=2)).parent


@pytest.fixture
def cluster():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
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
    small = {"object_store_memory": 80 << 20}
    return cluster.add_node(num_cpus=cpus, labels=WORKERS, **small)


def make(root, rank, fleet=None, ranks=2, **changes):
    dataset = TarDataset(str(root / "*.tar"), VisionLanguage(**SMALL), cache=root.parent / "cache")
    given = {"grouping": "isf", "budgets": {"tiles": 16, "tokens": 3000}, "accumulate": "auto"}
    given |= {"samples_per_step": 12, "rank": rank, "ranks": ranks, "shuffle": True}
    given |= {"layout": "torch", "collate_fn": list, "timeout": LIMIT_S, **changes}
    if fleet is None:
        given |= {"timeout": 0}
    return balanced_loader(dataset, fleet=fleet, **given)


class Rank:
    """A trainer process that takes steps when it is asked to."""

    def __init__(self, root, rank, fleet):
        self.loader = make(root, rank, fleet)
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
    loader = make(root, None, ranks=None, virtual_ranks=ranks)
    for number, each in map(digests, loader.steps()):
        found[number] = sorted(each)
    return found


def wait_for_workers(fleet, count):
    """Wait until the balancer has so many workers that serve."""
    address, keys = fleet.join()
    pause = threading.Event()
    for _ in range(LIMIT_S * 2):
        status = ask(address, 5.0, keys).status
        if status and sum(each.state == "ready" for each in status.worker_statuses) == count:
            return status
        pause.wait(0.5)
    raise AssertionError(status)


def leftovers():
    """Return the command lines of balancers and workers that are there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if b"main(['worker'" in line or b"main(['balancer'" in line:
            found.append(line[-200:])
    return found


def wait_until_nothing_is_left():
    pause = threading.Event()
    for _ in range(120):
        if not leftovers():
            return
        pause.wait(0.5)
    raise AssertionError(leftovers())


def test_it_is_scaled_and_loses_a_raylet_while_two_ranks_train(cluster, root):
    import ray

    node = add_workers_node(cluster, cpus=8)
    fleet = cp.fleet.Ray(workers=(2, 8), root=str(root), idle_s=20.0)
    right, found = expected(root), {}
    rank = ray.remote(Rank).options(num_cpus=0, label_selector=TRAINERS)
    ranks = [rank.remote(root, number, fleet) for number in range(2)]

    def train(steps):
        for number, each in itertools.chain(*ray.get([rank.take.remote(steps) for rank in ranks])):
            found.setdefault(number, []).extend(each)

    train(2)
    fleet.resize(4)
    print("trained 2", flush=True)
    wait_for_workers(fleet, 4)
    print("4 here", flush=True)
    fleet.resize(8)
    train(2)
    status = wait_for_workers(fleet, 8)
    assert {each.transport.partition(":")[0] for each in status.worker_statuses} == {"direct"}
    train(2)
    print("8 here", flush=True)
    cluster.remove_node(node, allow_graceful=False)
    print("node removed", flush=True)
    train(4)  # by those on the node that is left, which Ray starts again there
    print("trained after loss", flush=True)
    fleet.resize(2)
    train(2)
    print("resized to 2", flush=True)
    status = wait_for_workers(fleet, 2)
    lost = status.lost
    train(len(right))
    assert {number: sorted(each) for number, each in found.items()} == right
    assert ask(*[fleet.join()[0], 5.0, fleet.join()[1]]).status.lost == lost
    ray.get([rank.close.remote() for rank in ranks])
    wait_until_nothing_is_left()
