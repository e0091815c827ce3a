"""Tells when nothing in this process refers to a slot's memory any more.

Forks: a child has copies of the parent's tensors, and its finalizers must not free what the parent
still uses; nor may the memory of a tensor that the child has be written again when the parent is
done with it. So views end in a child without a call, and a slot that had a view at a fork is marked
as inherited: it is given up after use, not used again. Its memory is freed by the kernel when the
child has ended, too.
"""

import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from .memory import Mapping

# Takes whether a child was forked while the view was alive.
Ended = Callable[[bool], None]


class _View(weakref.ref[Any]):
    """Refers to the object that all tensors on a slot refer to."""

    __slots__ = ("ended", "inherited", "mapping")
    mapping: Mapping
    ended: Ended
    inherited: bool


# By the views' identity; they keep their mappings.
_alive: dict[int, _View] = {}


def watched_view(mapping: Mapping, length: int, ended: Ended) -> Any:
    """Return the mapping's first bytes as a buffer; `ended` is called when it is gone.

    `ended` may be called at any moment, in any thread, within any other function: it must neither
    wait nor raise. The mapping lives as long as the buffer.
    """
    memory = mapping.bytes(length)
    view = _View(memory, _end)
    view.mapping, view.ended, view.inherited = mapping, ended, False
    _alive[id(view)] = view
    return memory


def _end(view: Any, _finalizing: Any = sys.is_finalizing) -> None:
    # While the interpreter ends, what `ended` refers to may be gone, and is not needed.
    if not _finalizing():
        del _alive[id(view)]
        view.ended(view.inherited)


def _before_fork() -> None:
    for view in list(_alive.values()):
        if not view.inherited:
            view.inherited = True
            view.mapping.inherit()


def _in_child() -> None:
    for view in list(_alive.values()):
        view.ended = lambda _: None  # the slot is the parent's


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
