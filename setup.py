"""Finds the packages and compiles the kernels, neither of which pyproject.toml can express.

The root itself is `counterpoise`. A folder with a `compiled.pyx` becomes one extension, of the
sources that it includes; without a C compiler the package is installed without extensions.
"""

import hashlib
import re
from pathlib import Path

from setuptools import Extension, find_packages, setup

FOLDERS = ("balancer", "loader", "sched", "tools", "workers")
KERNELS = ("balancer/planning/kernels", "sched/bubble_filling/kernels")


def extension(folder: str) -> Extension:
    """Return the extension of a folder; it knows what it was compiled from, as a test asks."""
    whole = Path(folder, "compiled.pyx")
    included = re.findall(r'^include "(.+)"', whole.read_text(), re.MULTILINE)
    sources = [whole, *(Path(folder, name) for name in included)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return Extension(
        f"counterpoise.{folder.replace('/', '.')}.compiled",
        [str(whole)],
        depends=[str(path) for path in sources],
        define_macros=[("COUNTERPOISE_SOURCES", f'"{digest}"')],
        extra_compile_args=["-O3"],
        optional=True,
    )


found = find_packages(include=[*FOLDERS, *(f"{folder}.*" for folder in FOLDERS)])
# setuptools leaves this file out of the wheel only if it is told the file's name
setup(
    packages=["counterpoise", *(f"counterpoise.{name}" for name in found)],
    ext_modules=[extension(folder) for folder in KERNELS],
    script_name="setup.py",
)
