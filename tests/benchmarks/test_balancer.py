"""What the jobs of a balancer do for a message, and for a sample, does not grow."""

import sys

import pytest

from benchmarks.balancer import stand_ins
from benchmarks.balancer.driven import Driven


class Counted(Driven):
    """Counts lines of Python that the jobs take, in place of seconds; planning too.

    A loop counts as many lines as it has rounds, a comprehension too.
    """

    lines = 0

    def __init__(self, ranks):
        super().__init__(ranks, steps=1, samples=stand_ins.SAMPLES_PER_STEP)
        self.at = []

        def count(frame, event, _):
            self.lines += event == "line"
            return count

        def counted(method):
            def call(*given):
                sys.settrace(count)
                try:
                    return method(*given)
                finally:
                    sys.settrace(None)

            return call

        for name in ("handle", "tick"):
            setattr(self.jobs, name, counted(getattr(self.jobs, name)))

    def cpu_s(self):
        self.at.append((self.lines, self.messages))
        return 0.0

    def lines_per(self):
        """Play two runs; return lines a message, and a sample, of the second."""
        self.run()
        (lines, messages), (all_lines, all_messages) = self.at
        lines = all_lines - lines
        return lines / (all_messages - messages), lines / stand_ins.SAMPLES_PER_STEP


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    monkeypatch.setattr(stand_ins, "SAMPLES_PER_STEP", 384)


def test_no_message_costs_more_for_more_ranks_or_workers():
    # 147 lines for 170: a walk over all ranks or workers a message would be 128 more.
    assert Counted(192).lines_per()[0] < Counted(64).lines_per()[0]


def test_a_sample_is_handled_with_its_microbatch():
    # 87 at one rank with two workers; what is done sample by sample shows here.
    assert Counted(1).lines_per()[1] < 95
