"""Finds the packages and compiles the kernels, neither of which pyproject.toml can express.

The root itself is `counterpoise`. A folder with a `compiled.pyx` becomes one extension, of all
sources there; without a C compiler, or where it fails, the package is installed without them.
"""

import hashlib
from pathlib import Path

from setuptools import Extension, find_packages, setup

FOLDERS = ("balancer", "loader", "sched", "tools", "workers")
KERNELS = ("balancer/planning/kernels", "sched/bubble_filling/kernels")


def extension(folder: str) -> Extension:
    """Return the extension of a folder; it knows what it was compiled from, as a test asks."""
    sources = sorted(Path(folder).glob("*.py*"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return Extension(
        f"counterpoise.{folder.replace('/', '.')}.compiled",
        [f"{folder}/compiled.pyx"],
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
