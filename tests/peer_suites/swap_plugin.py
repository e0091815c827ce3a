"""A pytest plugin: one class stands in torch's DataLoader's place in the whole process.

For suites that run where they lie (suites.py): their own modules subclass torch's DataLoader and
ask whether something is one, so that replacing the imports of a test file would not reach them.
PEER_LOADER names the class as MODULE:NAME, or a function that has ours used in another way;
PEER_HIDDEN names modules that cannot be imported. Loaded before the first conftest.py, and by
itself: some suites have a package `tests`, as we have. `python swap_plugin.py SCRIPT ARGUMENTS`
runs a script that way.
"""

import importlib
import importlib.metadata
import os
import runpy
import sys
from typing import Any

import torch.utils.data
import torch.utils.data.dataloader

# what a suite would load files of from the network, and does without where it is not installed
HIDDEN = os.environ["PEER_HIDDEN"].split()
sys.modules.update(dict.fromkeys(HIDDEN))  # type: ignore[arg-type]
_find = importlib.metadata.Distribution.from_name


def _find_shown(name: str) -> importlib.metadata.Distribution:
    if name in HIDDEN:  # torchmetrics asks for its version, and imports it
        raise importlib.metadata.PackageNotFoundError(name)
    return _find(name)


importlib.metadata.Distribution.from_name = _find_shown  # type: ignore[method-assign]
_module, _, _name = os.environ["PEER_LOADER"].partition(":")
LOADER: Any = getattr(importlib.import_module(_module), _name)
if isinstance(LOADER, type):
    for module in (torch.utils.data, torch.utils.data.dataloader):
        setattr(module, "DataLoader", LOADER)  # noqa: B010  to a type checker it is a class
else:
    LOADER()

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
