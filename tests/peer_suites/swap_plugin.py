"""A pytest plugin: one class stands in another loader's place in the whole process.

For suites that run where they lie (suites.py): their own modules subclass torch's DataLoader and
ask whether something is one, so that replacing the imports of a test file would not reach them.
PEER_LOADER names the class as MODULE:NAME, or a function that has ours used in another way;
PEER_CONTROL names the class that it replaces, PEER_HIDDEN modules that cannot be imported,
PEER_JOINED an installed package that gets the modules of the checkout too. Loaded before the first
conftest.py, and by itself: some suites have a package `tests`, as we have. `python swap_plugin.py
SCRIPT ARGUMENTS` runs a script that way.
"""

import importlib
import importlib.metadata
import os
import runpy
import sys
from typing import Any

# what a suite would load files of from the network, and does without where it is not installed
HIDDEN = os.environ["PEER_HIDDEN"].split()
sys.modules.update(dict.fromkeys(HIDDEN))  # type: ignore[arg-type]
_find = importlib.metadata.Distribution.from_name


def _find_shown(name: str) -> importlib.metadata.Distribution:
    if name in HIDDEN:  # torchmetrics asks for its version, and imports it
        raise importlib.metadata.PackageNotFoundError(name)
    return _find(name)


importlib.metadata.Distribution.from_name = _find_shown  # type: ignore[method-assign]


def _import_named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


CONTROL, LOADER = (_import_named(os.environ[name]) for name in ("PEER_CONTROL", "PEER_LOADER"))


def swap() -> None:
    """Put the class in place, or have ours used in another way."""
    if isinstance(LOADER, type):
        # where it is defined, and the package that users import it from
        for module in (CONTROL.__module__, os.environ["PEER_CONTROL"].partition(":")[0]):
            setattr(sys.modules[module], CONTROL.__name__, LOADER)
    else:
        LOADER()


def swap_in_workers(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Return an environment of Ray in which its worker processes swap, too."""
    return {**(runtime_env or {}), "worker_process_setup_hook": "swap_plugin.swap"}


os.environ["RAY_RUNTIME_ENV_HOOK"] = "swap_plugin.swap_in_workers"
if joined := os.environ["PEER_JOINED"]:
    importlib.import_module(joined).__path__.append(os.environ["PEER_CHECKOUT"])
swap()

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
