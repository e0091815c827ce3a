"""Uses of the iterator: leaving loops, two at a time, threads and forks."""

import itertools
import threading
from typing import Any

from tests.loader.uses.forks import in_child
from tests.loader.uses.kinds import Make, batches, seen, use
from tests.loader.uses.samples import Numbers


@use("`len(loader)` before the first loop")
def length(make: Make) -> Any:
    return [len(make(Numbers(), batch_size=3, drop_last=drop)) for drop in (False, True)]


@use("`bool(loader)` before the first loop")
def truth(make: Make) -> Any:
    return [bool(make(Numbers(count), batch_size=3)) for count in (1, 7)]


@use("several epochs, one after the other")
def epochs(make: Make) -> Any:
    loader = make(Numbers(), batch_size=3)
    return [batches(loader) for _ in range(3)]


@use("`break`, then a new loop")
def left_by_break(make: Make) -> Any:
    loader = make(Numbers(), batch_size=2)
    for _ in loader:
        break
    return batches(loader)


@use("`itertools.islice`, then on with the same iterator")
def sliced(make: Make) -> Any:
    iterator = iter(make(Numbers(), batch_size=2))
    return batches(itertools.islice(iterator, 2)), batches(iterator)


@use("an exception in the loop's body, then on with the same iterator")
def body_raises(make: Make) -> Any:
    iterator = iter(make(Numbers(), batch_size=2))
    try:
        for _ in iterator:
            raise KeyError("the loop's own")
    except KeyError:
        return batches(iterator)


@use("an exception in the loop's body, then a new loop, with workers")
def body_raises_with_workers(make: Make) -> Any:
    loader = make(Numbers(), batch_size=2, num_workers=1)
    try:
        for _ in loader:
            raise KeyError("the loop's own")
    except KeyError:
        return batches(loader)


@use("a generator over the loader that is left half-way, then a new one")
def generator_left(make: Make) -> Any:
    loader = make(Numbers(), batch_size=2)

    def shifted() -> Any:
        for batch in loader:
            yield batch + 1

    left = shifted()
    first = seen(next(left))
    left.close()
    return first, batches(shifted())


@use("`del iterator` in the middle, then a new loop, with workers")
def deleted(make: Make) -> Any:
    loader = make(Numbers(), batch_size=2, num_workers=1)
    iterator = iter(loader)
    first = seen(next(iterator))
    del iterator
    return first, batches(loader)


@use("`next()` after the end")
def after_the_end(make: Make) -> Any:
    iterator = iter(make(Numbers(2)))
    return batches(iterator), next(iterator, "over"), next(iterator, "over")


@use("two iterators of one loader, in turns")
def two_iterators(make: Make) -> Any:
    loader = make(Numbers(), batch_size=5)
    one, other = iter(loader), iter(loader)
    return [seen(next(each)) for each in (one, other, one, other)]


@use("two loaders, in turns, with workers")
def two_loaders(make: Make) -> Any:
    pair = [make(Numbers(count), batch_size=2, num_workers=1) for count in (6, 4)]
    return [seen(both) for both in zip(*pair, strict=False)]


@use("a loop in another thread than the one before")
def threads(make: Make) -> Any:
    loader = make(Numbers(), batch_size=2)
    found = [batches(loader)]
    thread = threading.Thread(target=lambda: found.append(batches(loader)))
    thread.start()
    thread.join()
    return found


@use("a loop with workers in another thread")
def thread_with_workers(make: Make) -> Any:
    loader = make(Numbers(), batch_size=2, num_workers=1)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(batches(loader)))
    thread.start()
    thread.join()
    return found


@use("`os.fork()` after a loop; parent and child loop on")
def forked_after_use(make: Make) -> Any:
    loader = make(Numbers(), batch_size=2, num_workers=1)
    before = batches(loader)
    child = in_child(lambda: batches(loader))
    return before, batches(loader), child()
