"""The targets of `make fuzz`, by name; each makes its trial in a folder of its own."""

from collections.abc import Callable
from pathlib import Path

from tests.fuzz import kept_files, ledgers, messages, shard_changes
from tests.fuzz.outcomes import Trial

TARGETS: dict[str, Callable[[Path], Trial]] = {
    "ledgers": ledgers.make_trial,
    "kept-files": kept_files.make_trial,
    "shard-changes": shard_changes.make_trial,
    "messages": messages.make_trial,
}
# How many runs of each `make fuzz` makes unless told otherwise.
RUNS = {"ledgers": 10_000, "kept-files": 5_000, "shard-changes": 500, "messages": 1_000}
