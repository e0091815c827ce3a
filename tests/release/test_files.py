"""The files that a release has: their forms, by the libraries that know them, and one version."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import counterpoise

pytest.importorskip("check_jsonschema", reason="the extra `release` is not installed")

FORMS = {
    "CITATION.cff": "citation-file-format",
    ".github/workflows/*.yml": "github-workflows",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
}


def run(root: Path, program: str, *words: str) -> None:
    command = [str(Path(sys.executable).with_name(program)), *words]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("pattern", FORMS)
def test_a_file_has_the_form_that_its_reader_knows(root: Path, pattern: str) -> None:
    files = sorted(str(path) for path in root.glob(pattern))
    assert files
    run(root, "check-jsonschema", "--builtin-schema", f"vendor.{FORMS[pattern]}", *files)


def test_workflows_pass_a_linter_of_their_security(root: Path) -> None:
    # actions that are not pinned, rights that are not needed, tokens that stay in a checkout
    run(root, "zizmor", "--offline", "--no-progress", ".github/workflows")


def test_every_issue_form_asks_for_the_doctor(root: Path) -> None:
    for path in (root / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"):
        asked = {
            each["id"]: each["validations"]["required"]
            for each in yaml.safe_load(path.read_text())["body"]
            if "validations" in each
        }
        assert asked["doctor"], path.name


def test_all_files_tell_one_version(root: Path) -> None:
    assert (
        yaml.safe_load((root / "CITATION.cff").read_text())["version"] == counterpoise.__version__
    )
    newest = re.search(r"^## \[?(\d[\d.]*)", (root / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == counterpoise.__version__


def test_ci_runs_every_python_that_is_declared(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(project["project"]["classifiers"]))
    matrix = yaml.safe_load((root / ".github/workflows/ci.yml").read_text())["jobs"]["tests"]
    tried = [each["python"] for each in matrix["strategy"]["matrix"]["include"]]
    assert {*tried} == {*declared}
    built = project["tool"]["cibuildwheel"]["build"].split()
    assert built == [f"cp{name.replace('.', '')}-*" for name in declared]
