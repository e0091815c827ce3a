"""Workers start as torch's do: forked at each iteration, while no thread of ours is at work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("start_script.py")
KINDS = ("torch", "plain", "balanced")


def run_script(folder, words, text=None):
    numbers = folder / "numbers"
    numbers.write_text("".join(f"{number:2}" for number in range(8)))
    environ = {
        **os.environ,
        "COUNTERPOISE_TEST_FILE": str(numbers),
        "COUNTERPOISE_TEST_KINDS": " ".join(KINDS),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", *words],
        input=text, env=environ, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=["a script without a guard", "standard input"])
def found(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    if request.param == "standard input":
        return run_script(folder, ["-"], SCRIPT.read_text())
    return run_script(folder, [str(SCRIPT)])


def test_what_torch_yields_comes_from_ours_whatever_the_data_set_holds(found):
    expected = found["torch"]["batches"]
    assert expected[0] == [[1.0, 0.0], [3.0, 2.0], [5.0, 4.0]]
    assert expected[1] == [[101.0, 100.0], [103.0, 102.0], [105.0, 104.0], [107.0, 106.0]]
    for kind in KINDS:
        assert found[kind]["batches"] == expected


def test_no_thread_of_ours_is_at_work_when_a_process_is_forked(found):
    most = max(threads for threads, _ in found["torch"]["threads"])
    for kind in KINDS[1:]:
        # Five starts of two workers: persistent ones serve two of the six iterations.
        assert len(found[kind]["threads"]) == 5 * 2
        assert max(threads for threads, _ in found[kind]["threads"]) <= most
        of_zmq = {count for _, count in found[kind]["threads"]}
        assert of_zmq == {found["zmq threads of the script"]} == {2}
