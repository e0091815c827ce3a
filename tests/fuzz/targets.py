"""The targets of `make fuzz`, by name; each makes its trial in a folder of its own."""

from collections.abc import Callable
from pathlib import Path

from tests.fuzz import foreign_bytes, kept_files, ledgers, shard_changes
from tests.fuzz.outcomes import Trial

TARGETS: dict[str, Callable[[Path], Trial]] = {
    "ledgers": ledgers.make_trial,
    "kept-files": kept_files.make_trial,
    "shard-changes": shard_changes.make_trial,
    **{kind.__name__.lower(): foreign_bytes.maker_of(kind) for kind in foreign_bytes.FED},
}
# How many runs of each `make fuzz` makes unless told otherwise.
RUNS = dict.fromkeys(TARGETS, 500) | {"ledgers": 10_000, "kept-files": 5_000}
