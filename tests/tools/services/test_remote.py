"""`counterpoise balancer` and `counterpoise worker` as processes of their own, over tcp."""

import itertools
import json
import os
import re
import shutil
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from counterpoise import Ranks
from counterpoise.loader import LoaderError, RemoteDataset
from counterpoise.loader.resume.ledger import with_digest
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers import TarDataset, VisionLanguage
from counterpoise.workers.sources.costs import bad_cost
from tests.flat_options import balanced_loader
from tests.held_port import held_port
from tests.loader import balanced_data
from tests.loader.alarms import Alarms
from tests.tools.services.commands import LIMIT_S

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"tile_size": 32, "max_tiles": 4, "tokens_per_tile": 4}
SAMPLES = 60


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    shards = Path(ensure_demo_data(folder, samples=SAMPLES, shards=2)).parent
    (shards.parent / "private").mkdir()
    return shards


def start_worker(processes, address, root, *words):
    allow = [
        f"remote_transforms:{name}" for name in ("Measured", "AsSet", "Stumble", "Costly", "Bare")
    ]
    options = [word for name in allow for word in ("--allow", name)]
    worker = processes(
        "worker", address, "--root", str(root), *options, "--cache",
        str(root.parent / "cache"), *words,
    )  # fmt: skip
    worker.wait_for("working for")
    return worker


@pytest.fixture(scope="module")
def address(processes, root):
    """The address of a balancer with two workers."""
    balancer = processes("balancer", "--listen", "tcp://127.0.0.1:0")
    found = balancer.wait_for("listening on").partition("listening on ")[2].partition(";")[0]
    for _ in range(2):
        start_worker(processes, found, root)
    return found


def make(dataset=None, **changes):
    given: dict[str, Any] = {
        "grouping": "isf",
        "budgets": {"tiles": 16, "tokens": 3000},
        "accumulate": "auto",
    }
    given |= {
        "samples_per_step": 12,
        "ranks": Ranks(virtual=2),
        "shuffle": True,
        "timeout": LIMIT_S,
    }
    given |= {"layout": "torch", "collate_fn": list, **changes}
    chosen = RemoteDataset("*.tar", arguments=SMALL) if dataset is None else dataset
    return balanced_loader(chosen, **given)


def take(loader, after_step=lambda _: None):
    found = []
    for step in loader.steps():
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            found.append((step.number, info.rank, info.keys, balanced_data.digest(batch)))
        after_step(step.number)
    loader.close()
    return found


@pytest.fixture(scope="module")
def local(root):
    """What a loader in this process gives."""
    dataset = TarDataset(str(root / "*.tar"), VisionLanguage(**SMALL), cache=root.parent / "cache")
    found = take(make(dataset, timeout=0))
    keys = Counter(key for *_, names, _ in found for key in names)
    assert keys == Counter(dataset.key(index) for index in range(SAMPLES))
    return found


# A handler that raises while a message is freed is not heard of.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signals_inside_next_lose_nothing(address, local):
    made = make(balancer=address)
    with Alarms(seed=1, longest_s=2e-3) as alarms:
        while alarms.raised < 30:
            steps = alarms.take(made.steps())
            made.set_epoch(0)
            given = [
                (step.number, info.rank, info.keys, balanced_data.digest(batch))
                for step in steps
                for batch, info in zip(step.microbatches, step.infos, strict=True)
            ]
            assert given == local
    made.close()


# --- jobs, one after the other


def test_remote_workers_deliver_what_a_local_loader_does(address, local):
    assert take(make(balancer=address)) == local


def test_a_standalone_balancer_orders_microbatches_as_one_in_this_process(address, root, tmp_path):
    costs = tmp_path / "costs.json"
    forward = [{"per_thousand": {"tiles": 900}}, {"per_thousand": {"tokens": 7, "token_pairs": 1}}]
    costs.write_text(json.dumps({"placement": [0, 1], "passes": {"F": forward}}))
    options: dict[str, Any] = {"accumulate": 3, "grouping": "balanced", "budgets": {}}
    ordered = {**options, "pipeline": str(costs)}
    dataset = TarDataset(str(root / "*.tar"), VisionLanguage(**SMALL), cache=root.parent / "cache")
    expected = take(make(dataset, timeout=0, **ordered))
    assert take(make(balancer=address, **ordered)) == expected
    assert take(make(balancer=address, **options)) != expected


def test_the_number_of_steps_is_known_from_the_workers(address, local):
    loader = make(balancer=address)
    assert loader.num_steps == len({step for step, *_ in local})
    loader.close()


def test_another_job_follows_when_the_first_is_done(address):
    keys = [key for *_, names, _ in take(make(balancer=address, seed=9, ranks=Ranks(virtual=1)))
            for key in names]  # fmt: skip
    assert len(set(keys)) == len(keys) == SAMPLES


def test_another_job_follows_a_trainer_that_died_without_a_word(address, local):
    first = make(balancer=address, seed=4)
    next(iter(first))
    connection = first._balanced._connection
    connection._leave.detach()
    connection._sockets._context.destroy(linger=0)
    assert take(make(balancer=address)) == local


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 4}, r"serves another job, that of process 0 .*: plan\.seed: 0 here, 4 there"),
        ({}, r"plays rank 0 of this job already.*the newcomer is"),
    ],
    ids=["another", "the same"],
)
def test_a_job_at_the_same_time_is_refused_and_the_first_goes_on(address, local, changes, says):
    """A sweep, or a slip: once the first has said something, the second ends."""
    first = make(balancer=address)
    steps = first.steps()
    numbers = [next(steps).number]
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(take, make(balancer=address, **changes))
        while not second.done():
            numbers += [step.number for step in itertools.islice(steps, 1)]
            wait([second], timeout=0.5)
    numbers += [step.number for step in steps]
    with pytest.raises(LoaderError, match=says):
        second.result()
    assert numbers == sorted({step for step, *_ in local})
    first.close()


def test_a_transform_of_the_users_own_runs_where_it_is_allowed(address):
    dataset = RemoteDataset("*.tar", "remote_transforms:Measured", {"offset": 5})
    loader = make(dataset, balancer=address, budgets={"tokens": 60})
    found = [sample for batch in loader for sample in batch]
    loader.close()
    assert len({sample["name"] for sample in found}) == len(found) == SAMPLES
    assert min(int(sample["length"][0]) for sample in found) > 5


def test_ranks_in_processes_of_their_own_share_the_batches_and_can_start_anew(address, local):
    def ranks():
        return [make(balancer=address, ranks=(r, 2)) for r in (0, 1)]

    def die(loader):
        connection = loader._balanced._connection
        connection._leave.detach()
        connection._sockets._context.destroy(linger=0)

    first = ranks()
    pairs = zip(*[loader.steps() for loader in first], strict=True)
    assert [[step.number for step in next(pairs)] for _ in range(2)] == [[0, 0], [1, 1]]
    for loader in first:
        die(loader)
    with ThreadPoolExecutor(2) as pool:  # each asks again until the first is known to be gone
        found = [each for taken in pool.map(take, ranks()) for each in taken]
    assert sorted(found) == sorted(local)


# --- what can be wrong with a job


@pytest.mark.parametrize(
    ("pattern", "transform", "reason"),
    [
        ("../private/*.tar", None, "outside|below|root"),
        pytest.param("/etc/*.tar", None, "outside|below|root", marks=pytest.mark.long),
        ("nothing-*.tar", None, "nothing-"),
        ("*.tar", "os:system", "no such transform: 'os:system'"),
        pytest.param(
            "*.tar", "remote_transforms:nowhere", "no such transform", marks=pytest.mark.long
        ),
    ],
)
def test_a_job_that_no_worker_can_do_is_one_clear_line(address, pattern, transform, reason):
    with pytest.raises(LoaderError, match=reason) as raised:
        take(make(RemoteDataset(pattern, transform), balancer=address))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        ("AsSet", "(only a dict of arrays|is of type set, and what travels are dicts)"),
        ("Stumble", "KeyError: 'no such member"),
    ],
)
def test_a_transform_that_fails_is_named_with_its_sample(address, transform, reason):
    dataset = RemoteDataset("*.tar", f"remote_transforms:{transform}")
    with pytest.raises(LoaderError, match=f"sample '.*{reason}"):
        take(make(dataset, balancer=address, budgets={}))


LONG = [pytest.param(value, marks=pytest.mark.long) for value in (2.7, -1, 2**63)]


@pytest.mark.parametrize("cost", ["nan", *LONG])
def test_a_cost_that_cannot_be_planned_is_an_error_or_a_hole(address, root, cost):
    dataset = RemoteDataset("*.tar", "remote_transforms:Costly", {"cost": cost})
    reason = bad_cost("tokens", float(cost) if isinstance(cost, str) else cost)
    with pytest.raises(LoaderError, match=f"sample '.*7'.*{re.escape(reason)}"):
        take(make(dataset, balancer=address))
    holes = []
    loader = make(dataset, balancer=address, on_error="skip")
    for step in loader.steps():
        holes += [key for info in step.infos for key in info.holes]
    loader.close()
    files = TarDataset(str(root / "*.tar"))
    keys = [files.key(index) for index in range(SAMPLES)]
    assert sorted(holes) == sorted(key for key in keys if key.endswith("7"))
    assert holes


@pytest.mark.parametrize("number", ["nan", *LONG])
def test_a_number_in_place_of_a_probe_is_refused_by_name(address, number):
    dataset = RemoteDataset("*.tar", "remote_transforms:Bare", {"cost": number})
    reason = rf"sample '.*7'.*probe\(\) gave {number}, needed is Probe\(key, "
    with pytest.raises(LoaderError, match=reason):
        take(make(dataset, balancer=address))


def test_after_all_this_the_workers_still_work(address, local):
    assert take(make(balancer=address)) == local


# --- processes that come and go


def test_workers_may_die_leave_and_come_in_the_middle_of_a_run(processes, address, root, local):
    doomed = start_worker(processes, address, root)
    polite = start_worker(processes, address, root, "--threads", "2")
    for worker in (doomed, polite):
        worker.wait_for("working for")

    def after_step(step):
        if step == 0:
            assert doomed.end(signal.SIGKILL) == -signal.SIGKILL
            start_worker(processes, address, root)
        if step == 1:
            assert polite.end(signal.SIGTERM) == 0

    assert take(make(balancer=address), after_step) == local


def of_step(step):
    return [
        (step.number, info.rank, info.keys, balanced_data.digest(batch))
        for batch, info in zip(step.microbatches, step.infos, strict=True)
    ]


def test_a_job_goes_on_where_its_balancer_is_stopped_and_started_again(
    processes, root, local, caplog
):
    with held_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        first = processes("balancer", "--listen", address)
        start_worker(processes, address, root)
        loader = make(balancer=address)
        steps = iter(loader.steps())
        found = [of_step(next(steps))]
        assert first.end(signal.SIGTERM) == 0
        processes("balancer", "--listen", address)
        found += [of_step(step) for step in steps]
        loader.close()
        assert [each for step in found for each in step] == local
        assert "was stopped; waits up to" in caplog.text
        assert take(make(balancer=address)) == local


def test_a_worker_with_another_root_ends_no_job(processes, address, root, local, tmp_path):
    late = []

    def after_step(step):
        if step == 0:
            worker = processes("worker", address, "--root", str(tmp_path))
            late.append(worker)
            assert worker.process.wait(LIMIT_S) == 4

    assert take(make(balancer=address), after_step) == local
    late[0].wait_for("cannot do this job: ")
    late[0].wait_for("this worker cannot do what others can")


@pytest.fixture
def stale(processes, root, tmp_path):
    """A balancer's address, whose first worker has half of the data, and that worker."""
    (tmp_path / "copy").mkdir()
    shard = min(root.glob("*.tar"))
    shutil.copy(shard, tmp_path / "copy")
    address = f"ipc://{tmp_path}/balancer"
    processes("balancer", "--listen", address).wait_for("listening on")
    return address, start_worker(processes, address, tmp_path / "copy")


def two_ranks(address, **given):
    """Two loaders, each a rank of its own."""
    own = [make(balancer=address, ranks=(r, 2), **given) for r in (0, 1)]
    return own, [iter(each.steps()) for each in own]


def test_after_a_stale_worker_has_gone_the_right_one_serves_all_ranks(
    processes, root, local, stale
):
    address, first = stale
    loaders, iterators = two_ranks(address)
    first.wait_for("serving 30 samples")
    first.end(signal.SIGKILL)
    start_worker(processes, address, root)
    with ThreadPoolExecutor(2) as pool:
        found = [
            each for own in pool.map(list, iterators) for step in own for each in of_step(step)
        ]
    for loader in loaders:
        loader.close()
    assert sorted(found) == sorted(local)


def test_beside_a_ledger_a_stale_worker_is_refused_and_all_ranks_end_in_time(stale):
    address, first = stale
    loaders, _ = two_ranks(address, timeout=3.0)
    for loader in loaders:
        loader.load_state_dict(with_digest(loader.state_dict() | {"samples": SAMPLES}))
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(list, loader.steps()) for loader in loaders]
    assert first.process.wait(LIMIT_S) == 4
    for each in ended:
        with pytest.raises(
            TimeoutError, match=r"worker .* was refused: this worker has 30 samples"
        ):
            each.result()
    for loader in loaders:
        loader.close()


def test_a_supervised_balancer_that_is_killed_is_there_again(processes, root, local, tmp_path):
    address = f"ipc://{tmp_path}/balancer"
    balancer = processes("balancer", "--supervise", "--listen", address)
    start_worker(processes, address, root)
    loader = make(balancer=address)
    steps = iter(loader.steps())
    found = [of_step(next(steps))]
    children = Path(f"/proc/{balancer.process.pid}/task/{balancer.process.pid}/children")
    os.kill(int(children.read_text()), signal.SIGKILL)
    balancer.wait_for("was killed by SIGKILL, and is started again")
    found += [of_step(step) for step in steps]
    loader.close()
    assert [each for step in found for each in step] == local
    assert balancer.end(signal.SIGTERM) == 0
