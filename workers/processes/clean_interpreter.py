"""Makes the command of a new interpreter that finds the modules of this one."""

import subprocess
import sys


def clean_command(module: str, call: str) -> list[str]:
    """Return the command that imports `module` as `m` and evaluates `call`, "m.main(3)", say.

    The new interpreter gets this one's path and flags. While it imports the module it collects no
    garbage: there is none, and looking for it takes a twentieth longer.
    """
    path = [str(entry) for entry in sys.path]
    set_up = f"import gc, sys; sys.path[:] = {path!r}; gc.disable()"
    code = f"{set_up}; import {module} as m; gc.enable(); {call}"
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-P", "-c", code]
