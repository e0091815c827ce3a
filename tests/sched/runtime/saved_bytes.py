"""Count the bytes that every rank's stages have saved for backward passes while a program runs.

All ranks run in this process (`Loopback`). A tensor that autograd saves counts until it is dropped,
once for each storage and rank; parameters and what they share do not count. What I keeps for W
counts too, and so does what vocabulary layers hold between their passes.
"""

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from counterpoise.sched import Pass
from counterpoise.sched.runtime.parts import Given, Made
from counterpoise.sched.runtime.stage.deferral import DeferredGradients
from counterpoise.sched.runtime.stage.modules import Stages
from counterpoise.sched.runtime.vocabulary.step import VocabularyPart
from tests.sched.runtime.vocabulary.held import held_bytes


@dataclass(slots=True)
class Ledger:
    """What one rank holds: uses and bytes of each storage, by address, and the most so far.

    `layers`: the bytes that vocabulary layers hold. `after`: what was held after each pass.
    """

    left_out: frozenset[int]
    uses: Counter[int] = field(default_factory=Counter)
    size: dict[int, int] = field(default_factory=dict)
    layers: int = 0
    most: int = 0
    after: dict[Pass, int] = field(default_factory=dict)

    def saving(self) -> saved_tensors_hooks:
        """Return a context in which what autograd saves is counted."""
        return saved_tensors_hooks(lambda t: _Saved(t, self), lambda saved: saved.tensor)

    def note(self, what: Pass) -> None:
        """Note that a pass has ended."""
        self.after[what] = self.held
        self.most = max(self.most, self.held)

    def changes(self) -> dict[Pass, int]:
        """Return by how many bytes each pass changed what is held."""
        before = [0, *self.after.values()]
        return {what: held - before[at] for at, (what, held) in enumerate(self.after.items())}

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
        saved = sum(self.size[address] for address, uses in self.uses.items() if uses > 0)
        return saved + self.layers


class _Saved:
    """A saved tensor: counted while autograd holds this."""

    def __init__(self, tensor: Tensor, ledger: Ledger) -> None:
        self.tensor, self.ledger = tensor, ledger
        self.address = ledger.add(tensor)

    def __del__(self) -> None:
        self.ledger.drop(self.address)


class Counting:
    """A part of the executor, stages or vocabulary layers, that counts what it saves and holds."""

    def __init__(self, part: Stages | VocabularyPart, ledger: Ledger) -> None:
        self.part, self.ledger = part, ledger
        self.kinds, self.begin_step = part.kinds, part.begin_step
        self.finish_step = part.finish_step
        self._deferred: dict[tuple[int, int], list[int]] = {}

    def run_pass(self, what: Pass, given: Given) -> Made:
        place = what.stage, what.microbatch
        with self.ledger.saving():
            made = self.part.run_pass(what, given)
        del given
        if what.kind == "I":
            pending = made["weight"]
            assert isinstance(pending, DeferredGradients)
            self._deferred[place] = [
                self.ledger.add(t) for product in pending.products for t in product[1:]
            ]
        if what.kind == "W":
            for address in self._deferred.pop(place):
                self.ledger.drop(address)
        if isinstance(self.part, VocabularyPart):
            self.ledger.layers = held_bytes(self.part)
        self.ledger.note(what)
        return made
