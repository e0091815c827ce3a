"""A sample on its way through the balancer."""

from dataclasses import dataclass

Slot = int
ANY_SLOT: Slot = -1


@dataclass(slots=True)
class Sample:
    """A sample on its way: what is known of it, who has it, where it will go.

    `nbytes` is the payload's expected size until it arrives, then the size; `reason` says why the
    sample is a hole, `fatal` that the hole ends the run when its microbatch is due; `settled` means
    that the sample was decoded once or is a hole; `lent` that a rank was sent it and has not said
    that it took it.
    """

    ordinal: int
    index: int
    pickled: bytes = b""
    pin: Slot = ANY_SLOT
    key: str = ""
    cost: tuple[int, ...] | None = None
    nbytes: int = 0
    step: int = -1
    microbatch: int = -1
    rank: int = -1
    header: bytes = b""
    payload: object = None
    reserved: int = 0
    settled: bool = False
    reason: str = ""
    fatal: bool = False
    strikes: int = 0
    lent: bool = False

    @property
    def where(self) -> tuple[int, int]:
        """The step and the microbatch that need it."""
        return self.step, self.microbatch

    @property
    def is_open(self) -> bool:
        """Whether it is neither here nor lent nor a hole."""
        return self.payload is None and not self.lent and not self.reason
