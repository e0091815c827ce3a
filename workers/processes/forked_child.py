"""Forks processes of the trainer, which give up what they have of it.

As long as any process holds a copy, a socket stays connected, a pipe does not end, a device stays
open: what a trainer closes would not be closed while its fork lives. So a supervisor gives up the
trainer's descriptors once it has forked the first workers, which have them as torch's workers have
them. Regular files stay there: a worker that is started in place of one that died may read a data
set's open files, and nobody waits for the end of a file.
"""

import os
import signal
import stat
from collections.abc import Collection
from pathlib import Path

# Standard input, output and error are shared with the trainer on purpose: workers print.
STANDARD = (0, 1, 2)


def fork_with_default_signals() -> int:
    """Call `os.fork`; SIGTERM ends the child, SIGINT does not, and no signal is lost."""
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    return pid


def give_up_inherited(kept: Collection[int]) -> None:
    """Close all descriptors but those kept, the standard ones and those of regular files.

    Their numbers stay taken, by a descriptor that can neither be read nor written: a data set in a
    worker that is started later may still hold one, and must not reach what was opened since.
    """
    nothing = os.open("/", os.O_PATH)
    for descriptor in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if descriptor not in (nothing, *STANDARD, *kept) and _is_shared(descriptor):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _is_shared(descriptor: int) -> bool:
    """Return whether it is open, and closing it means something to others."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False  # the one that listed the folder
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
