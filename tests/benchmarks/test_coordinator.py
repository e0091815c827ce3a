import json
import sys

import pytest
from click.testing import CliRunner

from benchmarks.coordinator import served
from benchmarks.coordinator.command import command
from benchmarks.coordinator.driven import Driven, TimedPlanner
from counterpoise.balancer.coordinator.machine import Coordinator

# Of a sample's way through the coordinator at one rank and two workers, with its part of messages.
# It took 236 lines before samples were handled by lease and by microbatch, and takes 178.
LINES_PER_SAMPLE = 190


def lines_per(monkeypatch, ranks, workers):
    """Run an epoch; return the coordinator's lines of Python for a message of it, and for a sample.

    A loop counts as many lines as it has rounds, a comprehension too. Planning is left out, and so
    are ticks, whose number follows the time.
    """
    driven = Driven(ranks, workers, steps=1, samples_per_step=384)
    lines = messages = 0

    def count(frame, event, _):
        nonlocal lines
        lines += event == "line"
        return count

    def handle(*given):
        nonlocal messages
        if driven.spent is driven.joining:
            return Coordinator.handle(driven.coordinator, *given)
        messages += 1
        sys.settrace(count)
        try:
            return Coordinator.handle(driven.coordinator, *given)
        finally:
            sys.settrace(None)

    def plan(planner, window):
        trace = sys.gettrace()
        sys.settrace(None)
        planned = planner._planner.plan(window)
        sys.settrace(trace)
        return planned

    monkeypatch.setattr(TimedPlanner, "plan", plan)
    monkeypatch.setattr(driven.coordinator, "handle", handle)
    driven.run()
    assert driven.delivered == 384
    return lines / messages, lines / driven.delivered


def test_no_message_costs_more_for_more_ranks_workers_or_leases(monkeypatch):
    (few, _), (many, _) = lines_per(monkeypatch, 8, 16), lines_per(monkeypatch, 192, 512)
    # It costs less: fewer of the messages bring samples. With one walk over all workers or all
    # requests a message it is 1.1 to 2.2 times as much.
    assert many < few


def test_a_sample_is_handled_with_its_lease_and_its_microbatch(monkeypatch):
    _, lines = lines_per(monkeypatch, 1, 2)
    assert lines < LINES_PER_SAMPLE


def test_a_run_reports_each_cell():
    found = CliRunner().invoke(
        command,
        [
            "--cells",
            "1x1,3x2",
            "--rounds",
            "1",
            "--steps",
            "2",
            "--samples-per-step",
            "48",
            "--json",
        ],
    )
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout.splitlines()[-1])
    assert [(each["ranks"], each["workers"]) for each in report["cells"]] == [(1, 1), (3, 2)]
    for cell in report["cells"]:
        assert cell["us_per_sample"] > 0 < cell["us_per_message"]
        # A lease has four samples at first, and then all that run at the same time.
        assert cell["messages"]["DecodeDone"] <= 96 // 12


@pytest.mark.parametrize(
    "ways", [served.WAYS[1:2], pytest.param(served.WAYS, marks=pytest.mark.long)], ids=str
)
def test_a_balancer_over_tcp_is_measured_for_each_way(monkeypatch, ways):
    monkeypatch.setattr(served, "WAYS", ways)
    words = "--tcp --steps 2 --samples-per-step 256 --rounds 1 --payload-bytes 1000 --json"
    found = CliRunner().invoke(command, words.split())
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout.splitlines()[-1])
    assert (report["ranks"], report["workers"], report["microbatch"]) == (4, 4, 32)
    assert report["ways"].keys() == {str(way) for way in ways}
    for figures in report["ways"].values():
        assert figures["samples_per_cpu_s"] == 1e6 / figures["us_per_sample"]["median"]


@pytest.mark.parametrize("cells", ["", "3", "0x1", "axb", "1x2x3"])
def test_other_cells_are_refused(cells):
    found = CliRunner().invoke(command, ["--cells", cells])
    assert found.exit_code == 2
    assert "not like" in found.output or "at least" in found.output


def test_a_step_needs_a_sample_for_every_rank():
    found = CliRunner().invoke(command, ["--cells", "8x1", "--samples-per-step", "4"])
    assert found.exit_code == 2
    assert "--samples-per-step" in found.output


def test_memory_is_measured_in_each_mode():
    found = CliRunner().invoke(command, ["--memory", "4000", "--json"])
    assert found.exit_code == 0, found.output
    modes = json.loads(found.stdout.splitlines()[-1])["modes"]
    assert sorted(modes) == ["epoch", "exact", "window"]
    for figures in modes.values():
        assert figures["samples"] == 4000
        assert figures["most_bytes"] >= figures["kept_bytes"] > 0
