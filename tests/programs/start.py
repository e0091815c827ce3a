"""python -m tests.programs.start MODULES TARGET ARGUMENTS...: runs a program, with modules before.

MODULES, joined by commas, are imported first: a stand-in, an observer. TARGET is a script's path, a
console script's too, or a module to run.
"""

import runpy
import sys
from importlib import import_module
from pathlib import Path

import tests.programs.watched.sitecustomize  # noqa: F401  torchvision's and torchaudio's stand-ins

if __name__ == "__main__":
    modules, target = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    for module in filter(None, modules.split(",")):
        import_module(module)
    if Path(target).is_file():
        sys.path.insert(0, str(Path(target).resolve().parent))  # as `python SCRIPT` does
        runpy.run_path(target, run_name="__main__")
    else:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m MODULE` does
        runpy.run_module(target, run_name="__main__", alter_sys=True)
