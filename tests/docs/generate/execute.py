"""Run the notebooks and keep their outputs: `python -P -m tests.docs.generate.execute [NAME ...]`.

A notebook prints the same on every machine; its pictures change with what draws them. `make
test-all` runs the notebooks and compares what they print.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
from nbclient import NotebookClient

from tests.docs.pages import DOCS

# One thread: sums of floats are the same wherever they are printed.
SETTINGS = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "NO_COLOR": "1", "COLUMNS": "100"}


def executed(notebook: Path) -> Any:
    """Return a notebook with the outputs of a run in an empty folder; raise where a cell fails."""
    content = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        settings = {**SETTINGS, "XDG_CACHE_HOME": f"{folder}/cache", "PATH": _path()}
        with mock.patch.dict(os.environ, settings):
            client = NotebookClient(
                content,
                timeout=600,
                kernel_name="python3",
                record_timing=False,
                coalesce_streams=True,
                resources={"metadata": {"path": folder}},
            )
            client.execute()
    return content


def texts(content: Any) -> list[list[str]]:
    """Return what each cell prints, without its pictures."""
    return [
        [
            text
            for output in cell.get("outputs", [])
            for kind, text in output.get("data", {"text/plain": output.get("text", "")}).items()
            if not kind.startswith("image/")
        ]
        for cell in content["cells"]
    ]


def _path() -> str:
    """Return PATH with this environment's commands first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def main(names: list[str]) -> None:
    """Run the notebooks of docs/notebooks/, or those that are named, and write them."""
    for notebook in sorted(DOCS.glob("notebooks/*.ipynb")):
        if not names or notebook.stem in names:
            content = executed(notebook)
            content["metadata"] = {"language_info": {"name": "python"}}
            nbformat.write(content, notebook)
            print(notebook.name)


if __name__ == "__main__":
    main(sys.argv[1:])
