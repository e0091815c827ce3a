"""The browser of tests/sched for the pages of the tools."""

import importlib.util
from pathlib import Path

_PATH = Path(__file__).resolve().parent.parent / "sched" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("chromium_driver", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
_DRIVER = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_DRIVER)
chromium = _DRIVER.chromium
