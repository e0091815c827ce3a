"""A balanced loader that is made when its ranks are first needed.

Making a DataLoader looks at no rank, so that it may come before init_process_group. The ranks are
looked for at the first iteration, length or state, and must stay what they were then.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..balancer.planning.problem.options import Counts, Waits
from .balanced.microbatches import BalancedLoader
from .balanced.settings import BalancedArguments
from .step.ranks import Place, check_same_place

if TYPE_CHECKING:
    from .balanced.followed_costs import MeasuredCosts


class LateBalancedLoader:
    """Makes the balanced loader of a DataLoader at its first use; at once if ranks are numbers."""

    _is_made_at_once = True

    def __init__(
        self, arguments: BalancedArguments, make: Callable[[Place, Waits | None], BalancedLoader],
        choose_epoch: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`make` makes the loader of a place; `choose_epoch` tells data that have epochs."""
        self._make, self._choose_epoch, self._ranks = make, choose_epoch, arguments.ranks
        # The user's sampler, whose epoch is read at each iteration.
        self._follows = arguments.follows
        self._waits: Waits | None = None
        self._epoch, self._pinned = 0, False  # of a loader that is not made yet
        self._resumed: int | None = None
        self._ahead = 0
        self._place: Place | None = None
        self.made: BalancedLoader | None = None  # when it is first needed
        self._pipe: MeasuredCosts | None = None
        self._compares_batches = True
        if self._is_made_at_once and self._ranks.are_numbers:
            self.get()

    def get(self) -> BalancedLoader:
        """Return the loader, made at the first call; ValueError if its ranks cannot be found."""
        if self.made is None:
            self._place = self._ranks.find()
            self.made = self._make(self._place, self._waits)
            self.made.set_epoch(self._epoch, self._pinned)
            self.made.compares_batches = self._compares_batches
            if self._pipe is not None:
                self.made.follow_costs(self._pipe)
        return self.made

    def get_at_iteration(self) -> BalancedLoader:
        """Return the loader; ValueError if this process' ranks have changed since it was made."""
        if self._follows is not None:
            self.set_epoch(self._follows.epoch)
        loader, place = self.get(), self._ranks.find()
        check_same_place(
            self._place,
            place,
            "call load_state_dict() with a state of the loader (state_dict() gives one) to go on "
            "there with the new ranks",
        )
        return loader

    def get_at_resume(self, state: Any = None) -> BalancedLoader:  # noqa: ARG002
        """Return the loader for the ranks that this process has now; a former one is closed.

        state: the ledger that it will go on at.
        """
        if self._ranks.find() != self._place:
            self.forget()
        return self.get()

    def forget(self) -> None:
        """Close the loader, if there is one; the next use makes another, in the same epoch."""
        if self.made is not None:
            self.made.close()
            self._epoch, self.made = self.made.next_epoch, None

    def adopt(
        self, accumulate: int = 1, counts: Counts | None = None, means: str | None = None
    ) -> None:
        """Take what a framework says where the user has not: that is with balance="auto" only."""

    def adopt_times(self, times: Mapping[str, int], model: str) -> None:
        """Take the times of a model: with balance="auto" only."""

    def leave_labels(self) -> None:
        """Leave counts of labels that collate_fn changes: a framework counts them in batches."""
        self._compares_batches = False
        if self.made is not None:
            self.made.compares_batches = False

    @property
    def counts(self) -> Counts | None:
        """The counts that balance="auto" plans for; None of other plans."""
        return None

    def adopt_waits(self, waits: Waits | None) -> None:
        """Plan for ranks that wait as a framework says, unless the user says; before a batch."""
        if waits != self._waits:
            self._waits = waits
            self._plan_anew()

    def _plan_anew(self) -> None:
        """Plan otherwise from now on, at the same position if a ledger was loaded."""
        ledger = None
        if self.made is not None and self._resumed is not None:
            ledger = self.made.state_dict()
        self.forget()
        if ledger is not None:
            self.load_state_dict(ledger)

    def load_state_dict(self, state: Any) -> None:
        """Continue at a ledger; ValueError if the loader of this process' ranks cannot."""
        loader = self.get_at_resume(state)
        loader.load_state_dict(state)
        self._resumed, self._pinned = loader.epoch, False
        if self._follows is not None:
            self._follows.set_epoch(loader.epoch)

    def follow_costs(self, pipe: "MeasuredCosts") -> None:
        """Order microbatches by the costs that a pipeline measures, from the next step on."""
        self._pipe = pipe
        if self.made is not None:
            self.made.follow_costs(pipe)

    def follow_epoch(self, epoch: int) -> None:
        """Choose the epoch by a framework's count, which may begin at 0 after a resume (Fabric)."""
        if self._resumed is not None:
            self._ahead, self._resumed = max(0, self._resumed - epoch), None
        self.set_epoch(epoch + self._ahead)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterations, until another is chosen or a ledger loaded."""
        self._epoch, self._pinned = epoch, True
        if self._follows is not None:
            self._follows.set_epoch(epoch)
        self._choose_epoch(epoch)
        if self.made is not None:
            self.made.set_epoch(epoch)

    def snapshot(self) -> dict[str, Any]:
        """Return the beginning of a copy: epoch and ledger, None before the first use."""
        ledger = None if self.made is None else self.made.state_dict()
        epoch, compares = (self._epoch, self._pinned), self._compares_batches
        return {"epoch": epoch, "ledger": ledger, "waits": self._waits, "compares": compares}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Begin with what another has left; before the first use."""
        self._compares_batches = snapshot["compares"]
        self.adopt_waits(snapshot["waits"])
        self._epoch, pinned = snapshot["epoch"]
        if snapshot["ledger"] is not None:
            self.load_state_dict(snapshot["ledger"])
        if pinned:
            self.set_epoch(snapshot["epoch"][0])

    def close(self) -> None:
        """End the loader's processes, if any were started."""
        if self.made is not None:
            self.made.close()
