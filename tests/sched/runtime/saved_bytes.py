"""Count the bytes that every rank's stages have saved for backward passes while a program runs.

All ranks run in this process (`Loopback`). A tensor that autograd saves counts until it is dropped,
once for each storage and rank; parameters and what they share do not count. What I keeps for W
counts too.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from counterpoise.sched import Pass
from counterpoise.sched.runtime.parts import StepData
from counterpoise.sched.runtime.parts.interface import Given, Made
from counterpoise.sched.runtime.stage import DeferredGradients, Stages


@dataclass(slots=True)
class Ledger:
    """What one rank holds: uses and bytes of each storage, by address, and the most so far."""

    left_out: frozenset[int]
    uses: Counter[int] = field(default_factory=Counter)
    size: dict[int, int] = field(default_factory=dict)
    most: int = 0

    def add(self, tensor: Tensor) -> int:
        """Count a tensor; return its storage's address, 0 for one that is left out."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in self.left_out:
            return 0
        self.uses[address] += 1
        self.size[address] = storage.nbytes()
        self.most = max(self.most, self.held)
        return address

    def drop(self, address: int) -> None:
        if address:
            self.uses[address] -= 1

    @property
    def held(self) -> int:
        return sum(self.size[address] for address, uses in self.uses.items() if uses > 0)


class _Saved:
    """A saved tensor: counted while autograd holds this."""

    def __init__(self, tensor: Tensor, ledger: Ledger) -> None:
        self.tensor, self.ledger = tensor, ledger
        self.address = ledger.add(tensor)

    def __del__(self) -> None:
        self.ledger.drop(self.address)


class CountingStages:
    """The stages of a rank, as a part of the executor that counts what they save."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        weights = [p for module in stages.modules() for p in module.parameters()]
        self.ledger = Ledger(frozenset(p.untyped_storage().data_ptr() for p in weights))
        # The bytes held after each pass.
        self.after: dict[Pass, int] = {}
        self._deferred: dict[tuple[int, int], list[int]] = {}

    @property
    def kinds(self) -> frozenset[str]:
        return self.stages.kinds

    def begin(self, data: StepData) -> None:
        self.stages.begin(data)

    def run(self, what: Pass, given: Given) -> Made:
        place = what.stage, what.microbatch
        with saved_tensors_hooks(lambda t: _Saved(t, self.ledger), lambda saved: saved.tensor):
            made = self.stages.run(what, given)
        del given
        if what.kind == "I":
            pending = made["weight"]
            assert isinstance(pending, DeferredGradients)
            self._deferred[place] = [self.ledger.add(tensor) for tensor in pending.tensors()]
        if what.kind == "W":
            for address in self._deferred.pop(place):
                self.ledger.drop(address)
        self.after[what] = self.ledger.held
        return made

    def finish(self) -> Tensor | None:
        return self.stages.finish()

    def modules(self) -> Iterable[nn.Module]:
        return self.stages.modules()


def peaks(parts: Sequence[CountingStages]) -> tuple[int, ...]:
    return tuple(part.ledger.most for part in parts)
