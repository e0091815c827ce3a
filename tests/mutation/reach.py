"""Notes which lines of which files are run."""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any


class Reached:
    """The lines that are run while it is entered, by file: those of some files, in all threads."""

    def __init__(self, files: Collection[str]) -> None:
        self.lines: dict[str, set[int]] = defaultdict(set)
        self._files = frozenset(files)
        self._tracers: dict[CodeType, Callable[..., Any] | None] = {}

    def __enter__(self) -> "Reached":
        threading.settrace(self._call)
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _call(self, frame: FrameType, *_: object) -> Any:
        code = frame.f_code
        try:
            return self._tracers[code]
        except KeyError:
            tracer = self._tracer(code) if code.co_filename in self._files else None
            return self._tracers.setdefault(code, tracer)

    def _tracer(self, code: CodeType) -> Callable[..., Any]:
        """Return what notes the lines of a function, and gives up when it has seen them all."""
        reached = self.lines[code.co_filename]
        missing = {line for _, _, line in code.co_lines() if line is not None}

        def note(frame: FrameType, *_: object) -> Any:
            if frame.f_lineno is not None:  # some of the interpreter's own steps have none
                reached.add(frame.f_lineno)
                missing.discard(frame.f_lineno)
            if missing:
                return note
            self._tracers[code] = None
            return None

        return note
