"""Processes are found at any depth below one, with their CPU time."""

import os
import subprocess

from benchmarks.loading.processes import cpu_s_below, tree


def test_children_of_children_are_counted_with_their_time() -> None:
    # an inner shell works until its standard input ends
    inner = "sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo; read end'"
    outer = subprocess.Popen(
        ["sh", "-c", f"{inner}; :"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert outer.stdout is not None
    outer.stdout.readline()
    _, *below = tree(outer.pid)
    found = cpu_s_below(os.getpid())
    outer.communicate()
    assert len(below) == 1
    assert set(found) >= {outer.pid, *below}
    assert found[below[0]] > 0
