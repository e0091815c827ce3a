"""verl's own test file of its balancing functions passes with `cp.partition` inside."""

import os
import re
import shutil
import subprocess
import sys

from tests.programs.harness import need_source


def test_their_tests_pass_with_ours_inside(tmp_path):
    source = need_source("verl/tests/utils/test_seqlen_balancing.py")
    shutil.copy(source, tmp_path)
    calls = tmp_path / "calls"
    modules = "tests.programs.verl.cpu_platform,tests.programs.verl.answers"
    environment = os.environ | {
        "VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": modules, "CALLS": str(calls),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    pytest = [sys.executable, "-P", "-m", "pytest", "-v", "-c", os.devnull]
    ran = subprocess.run(
        [*pytest, "--rootdir", tmp_path, tmp_path / source.name],
        env=environment, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    tests = len(re.findall(r"^def test_", source.read_text(), re.M))
    assert re.search(rf"^=+ {tests} passed(, \d+ warnings?)? in", ran.stdout, re.M), ran.stdout
    names, processes = zip(*(line.split() for line in calls.read_text().splitlines()), strict=True)
    assert set(names) == {"karmarkar_karp", "get_group_balanced_partitions"}
    # pytest's own, two of mp.spawn for each of its two distributed cases
    assert len(set(processes)) >= 5
    print(f"\nverl's {source.name}: {tests} passed, {len(names)} calls of cp.partition")
