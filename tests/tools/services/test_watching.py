"""What a job shows while it runs: metrics of balancer, workers and trainer, for Prometheus."""

import json
import re
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from counterpoise import Ranks
from counterpoise.loader import DataLoader, RemoteDataset
from counterpoise.tools import cli
from counterpoise.tools.demo.data import ensure_demo_data
from tests.flat_options import flat_balance
from tests.forking.popen import COMMAND
from tests.security import raw_zmtp
from tests.tools.services.commands import limited
from tests.tools.trace.test_chrome import check_trace

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.slow
SAMPLES = 60


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    return Path(ensure_demo_data(folder, samples=SAMPLES, shards=2)).parent


def start_balancer(processes, *words):
    """Return the addresses of a balancer and of its metrics."""
    balancer = processes("balancer", "--listen", "tcp://127.0.0.1:0", *words)
    served = metrics_of(balancer)
    line = balancer.wait_for("listening on")
    return line.partition("listening on ")[2].partition(";")[0], served


def metrics_of(process):
    return re.findall(r"http://\S+", process.wait_for("metrics at"))[0]


def start_worker(processes, address, root, *words, **variables):
    worker = processes(
        "worker", address, "--root", str(root), "--allow", "remote_transforms:Sluggish", *words,
        **variables,
    )  # fmt: skip
    worker.wait_for("working for")
    return worker


def make(address, **changes):
    given: dict[str, Any] = {
        "balance": {"grouping": "isf", "budgets": {"tokens": 3000}, "samples_per_step": 12},
        "ranks": Ranks(virtual=2), "shuffle": True, "collate_fn": list, "timeout": 120,
        "keep_stats": True, "balancer": address, **changes,
    }  # fmt: skip
    given["balance"] = flat_balance(**given["balance"])
    data = RemoteDataset("*.tar", transform="remote_transforms:Sluggish")
    return DataLoader(data, **given)


def scrape(address):
    """Return the values of metrics by name and labels, as they are written."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


@pytest.fixture(scope="module")
def job(processes, root):
    """A balancer and a worker with metrics, and a job that has had an epoch."""
    address, balancer = start_balancer(processes, "--metrics", "127.0.0.1:0")
    worker = start_worker(processes, address, root, "--metrics", "127.0.0.1:0")
    loader = make(address)
    list(loader)
    yield address, balancer, metrics_of(worker), loader
    loader.close()


def test_a_loop_with_a_balancer_counts_what_it_gets(job):
    loader = job[-1]
    stats = loader.stats()
    assert stats["samples"] == SAMPLES
    assert stats["steps"] == 5
    assert stats["costs"]["tokens"] > 0
    assert stats["queue_batches"] == 0
    assert stats["work_seconds"] is None  # the workers are the balancer's


def test_balancer_and_worker_serve_their_metrics(job):
    _, balancer, worker, _ = job
    found = scrape(balancer)
    decoded = [each for name, each in found.items() if "_worker_decoded_samples_total{" in name]
    assert decoded == [SAMPLES]
    assert found['counterpoise_balancer_workers{training_job="default"}'] == 1
    assert found['counterpoise_balancer_trainers{training_job="default"}'] == 1
    assert any("rank_blocked_seconds_total" in name for name in found)
    own = scrape(worker)
    assert own['counterpoise_worker_samples_total{training_job="default",work="decode"}'] == SAMPLES
    assert own['counterpoise_worker_payload_bytes_total{training_job="default"}'] > 0
    assert own["process_cpu_seconds_total"] > 0


def test_a_balancer_with_metrics_has_no_torch():
    """In an interpreter of its own: the other processes here are forked from one that has it."""
    words = [COMMAND, "balancer", "--listen", "tcp://127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as balancer:
        served = re.findall(r"http://\S+", next(line for line in balancer.stderr if "http" in line))
        assert "process_resident_memory_bytes" in scrape(served[0])
        maps = Path(f"/proc/{balancer.pid}/maps").read_text()
        balancer.terminate()
    assert "libzmq" in maps
    assert "torch" not in maps


def test_a_stranger_who_holds_connections_to_metrics_keeps_nobody_out(processes, root):
    words = "balancer", "--listen", "tcp://127.0.0.1:0", "--metrics", "127.0.0.1:0"
    balancer = processes(command=limited(80, *words))
    served, line = metrics_of(balancer), balancer.wait_for("listening on")
    address = line.partition("listening on ")[2].partition(";")[0]
    port, held = int(served.rpartition(":")[2].partition("/")[0]), []
    for _ in range(200):
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", port))
        held.append(stranger)
    worker = start_worker(processes, address, root)
    loader = make(address)
    assert sum(len(batch) for batch in loader) == SAMPLES
    loader.close()
    held[0].settimeout(60)
    assert held[0].recv(1) == b""  # an idle one is closed
    for each in held:
        each.close()
    assert "process_cpu_seconds_total" in scrape(served)
    assert worker.end() == balancer.end() == 0


def test_nonsense_at_metrics_leaves_no_traceback_in_the_log(processes):
    words = "balancer", "--listen", "tcp://127.0.0.1:0", "--metrics", "127.0.0.1:0"
    balancer = processes(*words)
    served = metrics_of(balancer)
    port = int(served.rpartition(":")[2].partition("/")[0])
    for said in (b"nonsense\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n", b"\xff" * 99, b"GET /"):
        stranger = socket.create_connection(("127.0.0.1", port))
        stranger.sendall(said)
        raw_zmtp.reset(stranger)
    assert "process_cpu_seconds_total" in scrape(served)
    assert balancer.end() == 0
    assert not [line for line in balancer.lines if "Traceback" in line or "Error" in line]


# --- a job that goes on, from other terminals


@pytest.fixture(scope="module")
def going_on(job):
    """The address of a balancer whose job goes on until the tests are over."""
    address, loader = job[0], job[-1]
    ended = threading.Event()

    def train():
        while not ended.is_set():
            for _ in loader:
                pass

    trainer = threading.Thread(target=train)
    trainer.start()
    yield address
    ended.set()
    trainer.join()


def run(*words):
    return CliRunner().invoke(cli.group, words, catch_exceptions=False)


def test_top_shows_a_job_once(going_on):
    found = json.loads(run("top", going_on, "--once", "--json", "--interval", "0.2").stdout)
    assert found["error"] == ""
    found = found["jobs"]["default"]
    assert found["workers"] == found["trainers"] == 1
    assert found["trainer_statuses"][0]["ranks"] == "0-1"
    assert 0 <= found["wait_share"] <= 1
    text = run("top", going_on, "--once", "--interval", "0.2").stdout
    assert "exposed wait" in text
    assert "workers: 1" in text


@pytest.mark.parametrize("words", [("top", "--once"), ("trace", "--seconds", "0.1")])
def test_where_no_balancer_answers_the_exit_status_says_so(words, monkeypatch, capsys):
    monkeypatch.setattr(f"counterpoise.tools.{words[0]}.command.ANSWER_S", 0.1)
    monkeypatch.setattr("counterpoise.tools.trace.command.GRACE_S", 0.1)
    with pytest.raises(SystemExit) as ended:
        cli.main([words[0], "tcp://127.0.0.1:9", *words[1:]])
    assert ended.value.code == 3
    told = capsys.readouterr()
    assert "no answer in time" in told.out + told.err


def traced(address, path, seconds):
    """Return a trace's events, and the names of what each party did."""
    done = run("trace", address, "--seconds", str(seconds), "--out", str(path))
    assert "3 parties" in done.stdout
    trace = json.loads(path.read_text())
    check_trace(trace)
    events = trace["traceEvents"]
    names = {each["pid"]: set() for each in events}
    for each in events:
        if each["ph"] == "X":
            names[each["pid"]].add(each["name"])
    return events, names


def test_a_trace_follows_samples_through_all_parties(going_on, tmp_path):
    # A second has all of it but on a loaded machine.
    for seconds in (1, 5, 25):
        events, names = traced(going_on, tmp_path / "trace.json", seconds)
        if "plan" in names[0] and "deliver" in names[1] | names[2]:
            break
    assert {"part to load", "plan"} <= names[0]
    assert {"load"} in (names[1] & {"load"}, names[2] & {"load"})
    rank = names[1] if "deliver" in names[1] else names[2]
    assert rank == {"carry, until asked for", "wait", "deliver"}
    sent = [each for each in events if each["ph"] == "s"]
    assert sent
    # A sample is decoded before it is carried, on the one clock, within what that is known by.
    ends = {each["id"]: each["ts"] for each in events if each["ph"] == "f"}
    assert {each["id"] for each in sent} == {*ends}
