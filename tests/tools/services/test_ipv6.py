"""IPv6 from end to end: balancer, worker, trainer, metrics, `top` and `doctor` over [::1]."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from counterpoise.loader import Balancer
from counterpoise.tools import cli
from counterpoise.tools.demo.data import ensure_demo_data
from tests.balancer.transport.test_finding import has_ipv6
from tests.deploy.test_moved_name import INSIDE, may_mount
from tests.forking.popen import COMMAND
from tests.security.key_party import keygen
from tests.tools.services.commands import LIMIT_S
from tests.tools.services.test_direct import ways
from tests.tools.services.test_remote import SAMPLES, make, take

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6"),
]
NAME = "six.test"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return Path(ensure_demo_data(tmp_path_factory.mktemp("root"), samples=SAMPLES, shards=2)).parent


def address_of(balancer):
    return balancer.wait_for("listening on ").partition("listening on ")[2].partition(";")[0]


@pytest.mark.parametrize("has_keys", [False, True], ids=["open", "keys"])
def test_a_job_runs_over_ipv6_and_its_ranks_pull_samples(processes, root, tmp_path, has_keys):
    def keys(role):
        return ["--keys", str(tmp_path / role)] if has_keys else []

    keygen(tmp_path)
    balancer = processes("balancer", "--listen", "tcp://[::1]:0", *keys("balancer"))
    address = address_of(balancer)
    assert address.startswith("tcp://[::1]:")
    worker = processes("worker", address, "--root", str(root), *keys("worker"))
    own = tmp_path / "trainer" if has_keys else None
    loader = make(balancer=Balancer(address, keys=own))
    given = take(loader)
    assert sum(len(names) for *_, names, _ in given) == SAMPLES
    assert "direct: ranks pull from tcp://[::1]:" in worker.wait_for("works for job")


def test_metrics_top_and_doctor_work_over_ipv6(processes, root):
    pytest.importorskip("prometheus_client")
    balancer = processes("balancer", "--listen", "tcp://[::1]:0", "--metrics", "[::1]:0")
    line, address = balancer.wait_for("metrics at"), address_of(balancer)
    with urllib.request.urlopen(line.split()[-1], timeout=LIMIT_S) as answer:
        assert b"process_cpu_seconds_total" in answer.read()
    processes("worker", address, "--root", str(root))
    loader = make(balancer=address)
    next(iter(loader))
    for words in (["top", "--once", "--json", address], ["doctor", "--json", address]):
        ended = CliRunner().invoke(cli.group, words)
        assert '"workers": 1' in ended.output, ended.output
    assert ways(address) == {"direct"}
    loader.close()


@pytest.mark.skipif(not may_mount(), reason="needs mount namespaces")
def test_a_name_that_has_only_an_ipv6_address_is_found(processes, root, tmp_path):
    address = address_of(processes("balancer", "--listen", "tcp://[::1]:0"))
    named, hosts = address.replace("[::1]", NAME), tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n::1 {NAME}\n")
    program = (
        "import sys; from tests.tools.services.test_remote import make, take; "
        f"print(sum(len(k) for *_, k, _ in take(make(balancer={named!r}))))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    inside = [*INSIDE, str(hosts)]
    with subprocess.Popen([*inside, COMMAND, "worker", named, "--root", str(root)]) as worker:
        try:
            command = [*inside, sys.executable, "-c", program]
            said = subprocess.check_output(command, env=environment, text=True, timeout=LIMIT_S)
        finally:
            worker.kill()
    assert said.split() == [str(SAMPLES)]
