"""Prints a line for each program's environment: its version, and how its last tests ended."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

VERSION = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"


def program_version(environment: Path) -> str:
    """Return "name version" of the first requirement of an environment.

    Programs that are installed without what they require have it in a file of their own.
    """
    alone = environment / "no-deps.txt"
    listed = alone if alone.exists() else environment / "requirements.txt"
    lines = listed.read_text().splitlines()
    requirement = next(line for line in lines if line and not line.startswith("#"))
    name = re.split(r"[\[<>=]", requirement)[0].strip()
    python = environment / "bin" / "python"
    asked = subprocess.run([python, "-P", "-c", VERSION, name], capture_output=True, text=True)
    return f"{name} {asked.stdout.strip() or 'not installed'}"


def count_outcomes(report: Path) -> str:
    """Return how many tests of a JUnit report passed, failed and skipped."""
    failed = skipped = 0
    cases = list(ElementTree.parse(report).iter("testcase"))
    for case in cases:
        kinds = {child.tag for child in case}
        failed += bool(kinds & {"failure", "error"})
        skipped += "skipped" in kinds
    return f"{len(cases) - failed - skipped} passed, {failed} failed, {skipped} skipped"


if __name__ == "__main__":
    for environment in map(Path, sys.argv[1:]):
        outcomes = count_outcomes(environment / "report.xml")
        print(f"{environment.name:24}{program_version(environment):32}{outcomes}")
