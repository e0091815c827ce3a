"""A real Prometheus (Debian's, with promtool) scrapes a run with a slow worker: the alert fires."""

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.request

import pytest

from tests.imports import ROOT
from tests.tools.services.test_watching import (
    make,
    metrics_of,
    root as root,
    start_balancer,
    start_worker,
)

pytest.importorskip("prometheus_client")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("promtool")),
        reason="needs prometheus and promtool on the PATH: apt-get install prometheus",
    ),
]
DEPLOY = ROOT / "deploy" / "metrics"
LIMIT_S = 120


def ask(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.loads(answer.read())["data"]


def test_the_rules_and_the_configuration_are_valid():
    subprocess.run(["promtool", "check", "rules", DEPLOY / "alerts.yml"], check=True)
    subprocess.run(["promtool", "check", "config", DEPLOY / "prometheus.yml"], check=True)


@pytest.fixture
def watched(processes, root, tmp_path):
    """A Prometheus that watches a balancer with two workers and one that is slow."""
    address, balancer = start_balancer(processes, "--metrics", "127.0.0.1:0")
    start_worker(processes, address, root, SLUGGISH_S="0.02")
    start_worker(processes, address, root, SLUGGISH_S="0.02")
    slow = start_worker(processes, address, root, "--metrics", "127.0.0.1:0", SLUGGISH_S="0.3")
    targets = [re.sub(r"http://|/metrics", "", each) for each in (balancer, metrics_of(slow))]
    alerts = (DEPLOY / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(re.sub(r"for: \d+m", "for: 2s", alerts))
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "rule_files: [alerts.yml]\n"
        "scrape_configs:\n- job_name: counterpoise\n  static_configs:\n"
        f"  - targets: {json.dumps(targets)}\n"
    )
    process = subprocess.Popen(
        [
            "prometheus", f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}", "--web.listen-address=127.0.0.1:0",
        ],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines, said = iter(process.stderr.readline, ""), []
    for line in lines:
        said.append(line)
        if found := re.search(r'"Listening on" address=\S+:(\d+)', line):
            threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
            yield address, balancer, found[1]
            break
    else:
        pytest.fail("".join(said))
    process.kill()
    process.wait()


def test_a_slow_worker_raises_its_alert(watched):
    address, balancer, port = watched
    with urllib.request.urlopen(balancer, timeout=10) as answer:
        text = answer.read()
    subprocess.run(["promtool", "check", "metrics"], input=text, check=True)
    loader = make(address)
    firing, until = [], time.monotonic() + LIMIT_S
    while "CounterpoiseSlowWorker" not in firing and time.monotonic() < until:
        list(loader)
        found = ask(port, "/api/v1/alerts")["alerts"]
        firing = [each["labels"]["alertname"] for each in found if each["state"] == "firing"]
    loader.close()
    assert "CounterpoiseSlowWorker" in firing, found
    up = ask(port, "/api/v1/query?query=up")["result"]
    assert [each["value"][1] for each in up] == ["1", "1"]
    held = ask(port, "/api/v1/query?query=counterpoise_balancer_worker_decoded_samples_total")
    assert len(held["result"]) == 3
