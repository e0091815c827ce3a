"""Decides which slot a batch's tensor goes into: the sender's bookkeeping, without any memory.

A slot that was used comes back, and is used again: its pages exist in both processes, where those
of a new one are cleared by the kernel and mapped one by one. The slot used last comes first, since
it may still be in a cache. A tensor takes the smallest free slot that it fits into, unless that is
more than four times too large. Where none fits, a new one is made.

A loader whose batches differ in size (pictures do, and beside each lie some labels) needs slots of
several sizes, in turns. So a slot is retired, the one that has been free longest, only to keep the
bounds. There are never more than twice as many bytes in slots as were in use at one time; and never
more than twice as many slots, since each is a mapping. 64 mappings cost nothing, and are always
allowed: where one batch is in use at a time, twice its slots would be two for each kind of tensor,
and the largest, which is needed least often, would be retired and made again in every epoch.
"""

from dataclasses import dataclass, field

from .memory import PAGE

STEPS_PER_DOUBLING = 8
_MOST_TIMES_PEAK = 2
_ALLOWED_SLOTS = 64  # however few are in use
_LARGEST_WASTE = 4


@dataclass(slots=True)
class SlotBook:
    """The slots of one sender, by number.

    sizes: bytes of every slot there is; retired: numbers of slots that were given up since the
    caller last emptied the list.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    retired: list[int] = field(default_factory=list)
    # The free slots of each size, and all free ones, in the order in which they came back.
    _free: dict[int, dict[int, None]] = field(default_factory=dict)
    _free_oldest_first: dict[int, None] = field(default_factory=dict)
    _next_number: int = 0
    # Bytes of all slots, and of those in use; the most slots and bytes in use at one time.
    _nbytes: int = 0
    _used_bytes: int = 0
    _peak_slots: int = 0
    _peak_bytes: int = 0

    def take(self, nbytes: int) -> tuple[int, bool]:
        """Return the number of a slot for `nbytes` bytes, and whether it is new.

        ValueError for less than one byte.
        """
        if nbytes < 1:
            raise ValueError(f"a slot cannot have {nbytes} bytes")
        fitting = [size for size in self._free if nbytes <= size <= _LARGEST_WASTE * nbytes]
        if not fitting:
            return self._new(nbytes), True
        size = min(fitting)
        number, _ = self._free[size].popitem()
        self._unlist_free(number, size)
        self._use(size)
        return number, False

    def take_back(self, number: int) -> None:
        """Take a slot back; KeyError for one that does not exist, ValueError for a free one."""
        size = self.sizes[number]
        if number in self._free_oldest_first:
            raise ValueError(f"slot {number} is free already")
        self._free.setdefault(size, {})[number] = None
        self._free_oldest_first[number] = None
        self._used_bytes -= size

    def drop(self, number: int) -> None:
        """Forget a slot in use: it will not come back."""
        size = self.sizes.pop(number)
        self._nbytes -= size
        self._used_bytes -= size

    def _new(self, nbytes: int) -> int:
        number, self._next_number = self._next_number, self._next_number + 1
        size = self.sizes[number] = slot_size(nbytes)
        self._nbytes += size
        self._use(size)
        most = max(_ALLOWED_SLOTS, _MOST_TIMES_PEAK * self._peak_slots)
        most_bytes = _MOST_TIMES_PEAK * self._peak_bytes
        while self._free_oldest_first and (len(self.sizes) > most or self._nbytes > most_bytes):
            self._retire_oldest()
        return number

    def _use(self, size: int) -> None:
        self._used_bytes += size
        self._peak_slots = max(self._peak_slots, len(self.sizes) - len(self._free_oldest_first))
        self._peak_bytes = max(self._peak_bytes, self._used_bytes)

    def _retire_oldest(self) -> None:
        oldest = next(iter(self._free_oldest_first))
        size = self.sizes.pop(oldest)
        self._nbytes -= size
        del self._free[size][oldest]
        self._unlist_free(oldest, size)
        self.retired.append(oldest)

    def _unlist_free(self, number: int, size: int) -> None:
        del self._free_oldest_first[number]
        if not self._free[size]:
            del self._free[size]


def slot_size(nbytes: int) -> int:
    """Return the size of a slot for `nbytes` bytes: whole pages, at most an eighth more.

    >>> slot_size(1), slot_size(40_000), slot_size(1_000_000)
    (4096, 40960, 1048576)
    """
    step = max(PAGE, (1 << max(nbytes - 1, 1).bit_length()) // (2 * STEPS_PER_DOUBLING))
    return -(-nbytes // step) * step
