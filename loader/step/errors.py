"""Defines the loader's own errors, and refuses two threads in next() at the same time."""

import threading

from ...workers.sources.visible_text import visible


class LoaderError(RuntimeError):
    """The loader cannot continue: broken data, an impossible plan, a dead balancer.

    raised: the error of the user's code that ends the run, which the user gets in its place.
    """

    raised: Exception | None = None

    def __str__(self) -> str:
        """Return the message; what workers on other machines wrote into it is made visible."""
        return visible(super().__str__())


class ComesAgainError(LoaderError):
    """What collating has raised at a balancer: the microbatch comes again if the loop goes on."""


class OneCaller:
    """Refuses a thread that calls next() while another, `thread`, is inside.

    Another thread may call when the first has returned: prefetchers do that. There is no lock,
    which a signal's handler that raises could leave held: the thread that it raised in comes in
    again. Between two calls in Python neither a handler nor another thread gets its turn.
    """

    thread: int | None = None

    def enter(self) -> None:
        """Begin a call of next(); RuntimeError where another thread is in one."""
        me = threading.get_ident()
        if self.thread is not None and self.thread != me:
            raise RuntimeError(
                "two threads called next() of this loader at the same time, which would mix up "
                "what each of them gets: let one thread call it, or hold a lock around next()"
            )
        self.thread = me
