"""Names the samples of a step that a ledger's run has had, for the loader's skip_keys=."""

from pathlib import Path
from typing import Any

from ...loader.resume.ledger import BalancedLedger, check_same_data
from ...workers.mixture.order import epoch_order, epoch_samples, rows_of
from ...workers.sources.data_identity import KnownData
from ...workers.sources.interface import as_source
from ..analyze.scan.sources import find_dataset
from .figures import judge
from .files import read_ledger_file
from .job import Examination


def examine_step(path: Path, step: int, data: str) -> Examination:
    """Return the keys of a step of the epoch in which a ledger was saved; ValueError without.

    data: package.module:name of the data set, a mixture's recipe, or a pattern of files.
    """
    ledger = read_ledger_file(path)
    if not isinstance(ledger, BalancedLedger):
        raise ValueError("--step needs a ledger of a DataLoader with balance, which counts steps")
    if ledger.mode != "exact":
        raise ValueError(
            f"the plan's mode is {ledger.mode!r}, which moves samples between steps by what they "
            "cost: log StepInfo.keys in the loop; with mode 'exact' a ledger says which they are"
        )
    dataset: Any = rows_of(find_dataset(data))
    source = as_source(dataset)
    count = epoch_samples(source)
    check_same_data(ledger, KnownData(dataset, count, source.key).looked_at())
    begin = step * ledger.samples_per_step
    if not 0 <= begin < count:
        steps = -(-count // ledger.samples_per_step)
        raise ValueError(f"step is {step}, and the epoch has {steps}, counted from 0")
    order = epoch_order(source, ledger.seed or 0, ledger.epoch, ledger.shuffle)
    keys = [str(source.key(index)) for index in order[begin : begin + ledger.samples_per_step]]
    found = judge(f"step {step} of epoch {ledger.epoch}", f"{len(keys)} samples")
    return Examination([found, judge("keys", ", ".join(keys))], keys=tuple(keys))
