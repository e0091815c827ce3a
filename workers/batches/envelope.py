"""Defines what a wrapped worker sends with each batch, and the position of one reader.

torch's iterators hand out what collate_fn returns. Where the trainer must know more than the batch
(which samples are missing, which batch it is, how far the worker has read), our collate_fn returns
an `Envelope`, and the loader takes the batch out of it.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torch.utils.data import get_worker_info

from ..sources.failures import SkippedSample


class UnknownPositionError(ValueError):
    """A reason why data cannot state where they are; raised only where that is asked for."""


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """The position of one reader: a worker, or the trainer itself where there are no workers.

    read: items taken from the stream; ended: there are no more; iterator, dataset: their own
    state_dict() where they have one (dataset: or why it is not known); over: the iteration is done,
    the next one starts here.
    """

    read: int = 0
    ended: bool = False
    over: bool = False
    iterator: Any = None
    dataset: Any = None

    @property
    def has_state(self) -> bool:
        """Return whether the data say themselves where they are."""
        return self.iterator is not None or self.dataset is not None

    def check_known(self) -> Self:
        """Return the position; raises UnknownPositionError where the data could not say it."""
        if isinstance(self.dataset, UnknownPositionError):
            raise self.dataset
        return self

    def pack(self) -> bytes:
        """Return the position as bytes: states change in place, tensors go by shared memory."""
        return pickle.dumps(self, protocol=5)

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Return the position that `pack` packed."""
        position: Self = pickle.loads(packed)
        return position


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The positions that the readers of one iteration begin at, by the reader's number.

    turn: the reader whose batch comes first; those before it hand out nothing in the first round.
    """

    readers: tuple[ReaderPosition, ...] = ()
    turn: int = 0

    def find_position(self, number: int) -> ReaderPosition:
        """Return one reader's position; the beginning for readers that were not there before."""
        return self.readers[number] if number < len(self.readers) else ReaderPosition()


@dataclass(slots=True)
class LoadedState:
    """Knowledge of a data set into which states were loaded.

    first: its state before; begun: of the iteration after the last one, its state once it had
    given a sample, as text; None where that iteration is not the one before. follows_end: whether
    the state that was loaded last is that of an end, and nothing has been iterated since.
    """

    first: Any = None
    begun: str | None = None
    follows_end: bool = False


class Envelope(NamedTuple):
    """A batch and what the trainer must know about it.

    A named tuple, since torch pins the members of those. number: of the batch in the sampler's
    order, -1 if not needed; reader: number of its worker; holes: the samples that it lacks; empty:
    there is no batch; position: the reader's, packed, after the batch; samples: how many it has.
    """

    batch: Any
    number: int = -1
    reader: int = 0
    holes: tuple[SkippedSample, ...] = ()
    empty: bool = False
    position: bytes | None = None
    samples: int = 1


def reader_number() -> int:
    """Return the number of this worker; 0 in the trainer."""
    info = get_worker_info()
    return 0 if info is None else int(info.id)


def prepare_worker(reader: Any, init_fn: Callable[[int], None] | None, number: int) -> None:
    """Show the user's data set to get_worker_info(), run the user's worker_init_fn, restore.

    Before torch makes the worker's fetcher, which is of the data set that is wrapped.
    """
    info: Any = get_worker_info()
    # The record is frozen for its readers; there is no public way to make another one.
    object.__setattr__(info, "dataset", reader.dataset)
    if init_fn is not None:
        init_fn(number)
    reader.go_over()
    reader.restore()


def is_stateful(candidate: Any) -> bool:
    """Return whether an object has state_dict and load_state_dict, as torchdata asks for.

    >>> is_stateful(iter([1]))
    False
    """
    return hasattr(candidate, "state_dict") and hasattr(candidate, "load_state_dict")


def read_state(owner: Any) -> Any:
    """Return the state of an object that has one, else None."""
    return owner.state_dict() if is_stateful(owner) else None


def pack_position(iterator: Any, dataset: Any, read: int = 0, ended: bool = False) -> bytes:
    """Return a reader's position, packed, with the states of a data set and of its iterator.

    A ledger may never need it: so no error of theirs comes from here.
    """
    try:
        return ReaderPosition(read, ended, False, read_state(iterator), read_state(dataset)).pack()
    except UnknownPositionError as error:  # of a reader inside this one
        why = error
    except Exception as error:
        try:
            ReaderPosition(read, ended, False, read_state(iterator), read_state(dataset)).pack()
        except Exception:
            name, kind = type(iterator if dataset is None else dataset).__name__, type(error)
            why = UnknownPositionError(
                f"{name} cannot say where it is ({kind.__name__}: {error}): let its state_dict() "
                "need no argument and return what pickle takes, its iterator's too, or have none"
            )
        else:
            raise  # a signal's handler has raised it, in the midst
    return ReaderPosition(read, ended, dataset=why).pack()


def loses_samples(dataset: Any) -> bool:
    """Return whether a stream's state is without what its shuffle buffer holds: Hugging Face's.

    Samples that were read ahead into it would come in no batch: such a stream is read again.
    """
    iterables: list[Any] = [getattr(dataset, "_ex_iterable", None)]
    for iterable in iterables:
        if type(iterable).__name__ == "BufferShuffledExamplesIterable":
            return True
        nested = [iterable.ex_iterable] if hasattr(iterable, "ex_iterable") else []
        iterables += getattr(iterable, "ex_iterables", nested)
    return False
