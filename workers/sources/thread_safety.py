"""Checks whether threads may load a source's samples at the same time.

A source says so itself, by an attribute `thread_safe = True`: that `load`, `probe` and `key` may be
called while another thread is in one of them. What draws from the generators of the process may
not: threads share these, and what a sample draws would depend on the others.
"""

from typing import Any

from .interface import PlainSource, source_name

# More threads of one process wait for each other, and a number that large is a mistake.
MAX_THREADS = 64


def refuse_threads(source: Any, asked: str) -> None:
    """Raise ValueError for a source that does not say that it is thread-safe.

    `asked` is what was asked for, as the error says it.

    >>> refuse_threads(PlainSource(["a"]), "decode_threads=2")
    Traceback (most recent call last):
    ValueError: decode_threads=2, but samples of list may only be loaded by one thread: a plain \
dataset may draw from the generators of the process (random, numpy, torch), which threads share; \
give it load(index, epoch, seed), which does not, and thread_safe = True, or use more workers
    """
    if not getattr(source, "thread_safe", False):
        name = source_name(source)
        raise ValueError(
            f"{asked}, but samples of {name} may only be loaded by one thread: {_why(source)}, or "
            "use more workers"
        )


def _why(source: Any) -> str:
    dataset = source.dataset if isinstance(source, PlainSource) else source
    if not hasattr(dataset, "load"):
        return (
            "a plain dataset may draw from the generators of the process (random, numpy, torch), "
            "which threads share; give it load(index, epoch, seed), which does not, and "
            "thread_safe = True"
        )
    transform = getattr(dataset, "transform", None)
    if transform is None:
        return (
            f"{type(dataset).__name__} does not say that load(), probe() and key() may be called "
            "by several; if they may, give it thread_safe = True"
        )
    name = getattr(transform, "__name__", type(transform).__name__)
    return (
        f"its transform {name} does not say that several may call it; if they may, give it "
        "thread_safe = True, and the argument rng to draw from, or deterministic = True if it "
        "draws nothing"
    )
