"""Packages, kernels, installs of checkouts, links of README: what pyproject.toml cannot say.

The root itself is `counterpoise`. A folder with a `compiled.pyx` becomes one extension, of the
sources that it includes; without a C compiler the package is installed without extensions.
"""

import hashlib
import re
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.editable_wheel import editable_wheel

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


def read_me() -> str:
    """Return README.md as it is read outside of the repository: with links that lead there."""
    found = re.search(r"^ *repository: .*(https:\S+)", Path("mkdocs.yml").read_text(), re.MULTILINE)
    assert found, "mkdocs.yml names no repository"

    def absolute(link: re.Match[str]) -> str:
        way = "raw" if link[1].startswith("!") else "blob"  # an image, or a page
        page = "README.md" if link[2].startswith("#") else ""
        return f"{link[1]}{found[1]}/{way}/main/{page}{link[2]}"

    text = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r"(!?\[[^\]]*\]\()(?!https:)([^)]+)", absolute, text)


class EditableByLink(editable_wheel):
    """Installs with `-e` by a folder in which a link gives the checkout the package's name.

    setuptools would install a finder, which type checkers do not read. They read folders of a .pth.
    """

    def _select_strategy(self, name: str, *_: str) -> object:
        # private in setuptools: where it is gone, this file still makes wheels
        from setuptools.command.editable_wheel import _StaticPth

        folder = Path(".editable")
        folder.mkdir(exist_ok=True)
        (folder / "counterpoise").unlink(missing_ok=True)
        (folder / "counterpoise").symlink_to("..")
        return _StaticPth(self.distribution, name, [folder])


found = find_packages(include=[*FOLDERS, *(f"{folder}.*" for folder in FOLDERS)])
# setuptools leaves this file out of the wheel only if it is told the file's name
setup(
    packages=["counterpoise", *(f"counterpoise.{name}" for name in found)],
    ext_modules=[extension(folder) for folder in KERNELS],
    cmdclass={"editable_wheel": EditableByLink},
    script_name="setup.py",
    long_description=read_me(),
    long_description_content_type="text/markdown",
)
