"""Lets one thread at a time into next(), so that two do not mix up what each of them gets."""

import threading


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
